"""From a request to what it asks of the caches: the turn, the pool, and a query whatever the bytes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.base.model import Reason
from extproc.prompts.renderer import PlainRenderer
from extproc.requests import apis
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask, Query, explicit_turn, pool_for, pool_named, read
from extproc.routing.reading import at_once

POOL = Pool("pool", PlainRenderer())


@pytest.mark.parametrize(
    ("value", "turn"),
    [
        *(("0", 0), ("12", 12), (" 3 ", 3), ("9" * 9, 999_999_999), ("9" * 10, None), ("", None), ("-1", None)),
        *(("+1", None), ("1.0", None), ("\u0663", None), ("1,2", None), ("x", None)),
    ],
)
def test_turns_that_clients_tell(value: str, turn: int | None) -> None:
    """A whole number from 0, and nothing else."""
    assert explicit_turn({"x-smetric-turn": value}) == turn


def test_a_told_turn_makes_the_prompt_its_history() -> None:
    """Without a visible reply the whole prompt should be cached: the guard against evictions still works."""
    body = b'{"prompt": "%b"}' % (b"word " * 400)
    query = read(POOL, {}, Ask("/v1/completions", body, turn=2))
    assert (query.turn, query.history, query.prompt) == (2, 2000, 2000)


def test_the_model_chooses_the_pool() -> None:
    """By the names of base models first, then by announced adapters; the first pool takes what nobody knows."""
    first, second = (Pool(name, PlainRenderer(), models=frozenset({name})) for name in "ab")
    adapters = {"a": {"b": {"i"}, "lora": {"i"}}, "b": {"lora2": {"i"}}}.__getitem__
    for model, pool in (("a", first), ("b", second), ("lora", first), ("lora2", second), ("nobody", first)):
        assert pool_for([first, second], adapters, b'{"messages": [], "model": "%b"}' % model.encode()) is pool
    for odd in (None, b"", b"{", b'{"model": 5}', b"[" * 10_000, b"[]"):
        assert pool_for([first, second], adapters, odd) is first


@given(st.binary(max_size=200) | st.builds(lambda m: json.dumps({"messages": m}).encode(), st.lists(st.none())))
def test_no_body_raises(body: bytes) -> None:
    """Whatever the bytes, a query comes back."""
    assert isinstance(read(POOL, {}, Ask("/v1/chat/completions", body)), Query)


def test_keys_have_the_secret_of_the_pool() -> None:
    """Another secret, other keys; none is known yet: load alone, and all that needs no key is known."""
    body = b'{"prompt": "%b"}' % (b"word " * 400)
    open_, secret, waiting = (Pool("pool", PlainRenderer(), secret=each) for each in (b"", b"secret", None))
    one, other, none = (read(pool, {}, Ask("/v1/completions", body, turn=2)) for pool in (open_, secret, waiting))
    assert len(one.chain) == len(other.chain) == 7
    assert not set(one.chain) & set(other.chain)
    assert (none.chain, none.degraded) == ((), Reason.INDEX_UNAVAILABLE)
    assert (none.turn, none.prompt) == (one.turn, one.prompt)
    assert "secret" not in repr(secret)


@pytest.mark.parametrize(
    ("body", "chosen"),
    [
        (b'{"model": "b", "messages": [' + b'"x",' * 10_000 + b"0]}", "b"),
        (b'{"messages": [' + b'"x",' * 10_000 + b'0], "model":"b"}', "b"),
        (b'{"messages": ["\\"model\\": \\"b\\"' + b"x" * 40_000 + b'"], "model": "a"}', "a"),
        (b'{"tools": [{"model": "none of ours"}], "x": "' + b"x" * 40_000 + b'", "model": "b"}', "b"),
        (b'{"messages": [' + b'"x",' * 10_000 + b"0]}", "a"),
    ],
    ids=["first", "last", "in a text", "in an object", "nowhere"],
)
def test_a_body_that_is_not_read_goes_where_its_model_is(body: bytes, chosen: str) -> None:
    """By its first and last bytes; else an engine that does not know the model would refuse what another serves."""
    pools = [Pool(name, PlainRenderer(), frozenset({name})) for name in ("a", "b")]
    assert pool_named(pools, lambda _: {}, apis.models_named(body)).name == chosen
    assert at_once(pools, lambda _: {}, Ask("/v1/chat/completions", models=apis.models_named(body))).pool.name == chosen
