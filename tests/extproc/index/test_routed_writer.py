"""routed_writer.py: what a router sent where is in the index, and what the engines' own word ends stays ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from extproc.base.errors import IndexUnavailable
from extproc.index import Change
from extproc.index.memory import MemoryIndex
from extproc.index.routed_writer import Recorder

CHAIN = list(range(1, 9))


class Away(MemoryIndex):
    """An index that does not answer for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.asked = 0

    async def apply(self, changes: Sequence[Change]) -> None:
        self.asked += 1
        if self.away:
            raise IndexUnavailable("away")
        await super().apply(changes)


@pytest.fixture
def index() -> Away:
    return Away()


@pytest.fixture
async def recorder(index: Away) -> AsyncIterator[Recorder]:
    made = Recorder(index, ["routed"], ["followed"], writer="me")
    yield made
    await made.close()


async def until(index: Away, pool: str, expected: Mapping[str, int], chain: Sequence[int] = CHAIN) -> None:
    async with asyncio.timeout(10):
        while await index.match(pool, chain) != expected:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("pool", ["routed", "followed"])
async def test_what_is_noted_is_found(pool: str, index: Away, recorder: Recorder) -> None:
    """Of each instance, as far as it was sent."""
    recorder.note(pool, "a", CHAIN[:3])
    recorder.note(pool, "b", CHAIN)
    await until(index, pool, {"a": 3, "b": 8})
    recorder.note(pool, "a", CHAIN[:5])
    await until(index, pool, {"a": 5, "b": 8})
    recorder.note("unknown", "a", CHAIN)
    recorder.keep(pool, ["b"])
    await until(index, pool, {"b": 8})


async def test_in_a_followed_pool_it_counts_as_a_guess(index: Away, recorder: Recorder) -> None:
    """It is matched, and adds nothing to what the instance is known to hold."""
    recorder.note("followed", "a", CHAIN)
    recorder.note("routed", "a", CHAIN)
    await until(index, "followed", {"a": 8})
    await until(index, "routed", {"a": 8})
    assert (await index.sizes("followed"), await index.sizes("routed")) == ({}, {"a": 8})


async def test_what_the_instance_forgot_is_not_noted_again(index: Away, recorder: Recorder) -> None:
    """After a restart only what was sent since then is known of it, whole."""
    recorder.note("followed", "a", CHAIN)
    recorder.note("followed", "b", CHAIN)
    await until(index, "followed", {"a": 8, "b": 8})
    await index.apply([Change("followed", "a", forget=True)])
    assert await index.match("followed", CHAIN) == {"b": 8}
    other = [*CHAIN[:2], 77, 78]
    recorder.note("followed", "a", other)
    await until(index, "followed", {"a": 4, "b": 2}, other)
    assert await index.match("followed", CHAIN) == {"a": 2, "b": 8}
    recorder.note("followed", "a", CHAIN[:4])
    await until(index, "followed", {"a": 4, "b": 8})


@pytest.mark.parametrize(("pool", "kept"), [("routed", {"a": 8}), ("followed", {"a": 1})])
async def test_an_index_that_was_away(pool: str, kept: Mapping[str, int], index: Away, recorder: Recorder) -> None:
    """What was noted meanwhile is written when it answers again; nothing comes back that the instance's own word ended
    while it was away. Where there is no such word, everything that was sent is known again."""
    recorder.note(pool, "a", CHAIN)
    await until(index, pool, {"a": 8})
    index.away, before = True, index.asked
    recorder.note(pool, "a", CHAIN[:1])
    while index.asked == before:
        await asyncio.sleep(0.01)
    await MemoryIndex.apply(index, [Change(pool, "a", forget=True, writer="" if pool == "followed" else "me")])
    index.away = False
    recorder.note(pool, "a", CHAIN[:1])
    await until(index, pool, kept)


@pytest.mark.parametrize("pool", ["routed", "followed"])
async def test_another_secret(pool: str, index: Away, recorder: Recorder) -> None:
    """What was noted has keys that nobody will ask for any more: it is dropped; what is sent from then on counts."""
    recorder.note(pool, "a", CHAIN)
    await until(index, pool, {"a": 8})
    recorder.begin_anew()
    recorder.note(pool, "a", [91, 92])
    await until(index, pool, {"a": 2}, [91, 92])
    assert await index.match(pool, CHAIN) == {}
    assert not [key for key in CHAIN if key in recorder._caches[pool]._sent["a"]]
