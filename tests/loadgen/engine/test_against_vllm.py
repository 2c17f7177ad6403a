"""The instance replays recorded runs of vLLM: same events, same batches, same hits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from loadgen.engine.block_keys import chain, extra_keys
from loadgen.engine.instance import Cleared, Event, Instance, Limits, Removed, Request, Stored
from loadgen.engine.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Format, Wire
from loadgen.engine.kv_events import Event as WireEvent
from loadgen.engine.options import MODEL_DIR
from loadgen.engine.timing import PROFILES
from loadgen.engine.tokenizer import Tokens
from tests.support.recordings import lines

RUNS = [
    ("0.32.0/A_agents", Format.MAPS),  # three sessions, chunked prefill, decode blocks
    ("0.32.0/B_evict", Format.MAPS),  # the same with 271 blocks: hundreds of evictions
    ("0.24.0/B_evict", Format.MAPS),
    ("0.32.0/C_reset", Format.MAPS),  # resets, published late
    ("0.32.0/D_salt", Format.MAPS),  # cache_salt
    ("0.23.0/A_agents", Format.ARRAYS),
    ("0.23.0/C_reset", Format.ARRAYS),
]
UNKNOWN = 2**20  # stands for each token of a reply that does not re-tokenise to itself (structured output)


@pytest.mark.parametrize(("name", "style"), RUNS)
def test_a_recorded_run_gives_the_same_events_and_hits(name: str, style: Format) -> None:
    """Fed with the recorded requests, the model publishes vLLM's events one for one, batch for batch, with equal keys
    exactly where vLLM has equal hashes; and each request hits as many tokens as vLLM reported."""
    recording = lines(name)
    wire = Wire(style)
    theirs = [
        list(wire.decode(bytes.fromhex(line["payload_hex"])).events) for line in recording if line["kind"] == "event"
    ]
    ours: list[list[Event[Request]]] = []
    for batch, request, line in replay(recording):
        ours += batch
        details = line["response_usage"].get("prompt_tokens_details") or {}
        assert request.hit == details.get("cached_tokens", 0), line.get("note")
    assert len(ours) == len(theirs)
    names: dict[Any, Any] = {}
    for our_batch, their_batch in zip(ours, theirs, strict=True):
        assert [shape(event) for event in our_batch] == [wire_shape(event) for event in their_batch]
        for our_event, their_event in zip(our_batch, their_batch, strict=True):
            for key, hash_ in zip(keys(our_event), wire_hashes(their_event), strict=True):
                assert names.setdefault(key, hash_) == hash_
    assert len(set(names.values())) == len(names)


def replay(recording: list[dict[str, Any]]) -> Iterator[tuple[list[list[Event[Request]]], Request, dict[str, Any]]]:
    """The batches that each recorded request causes in the model, one request after the other as recorded."""
    meta = recording[0]
    size = meta["block_size_flag"]
    # vLLM keeps one of its blocks as the null block.
    instance = Instance[Request](
        PROFILES["demo"], meta["num_blocks"] - 1, size, Limits(meta["max_num_batched_tokens"], 8)
    )
    tokenizer = Tokens(MODEL_DIR)
    for line in recording:
        if line["kind"] == "control":
            assert instance.clear()
        if line["kind"] != "request" or line["status"] != 200:
            continue
        prompt, count = line["prompt_token_ids"], line["response_usage"]["completion_tokens"]
        reply = list(tokenizer.encode(line["response_text"] or ""))
        reply += [tokenizer.eos] if line["finish_reason"] == "stop" else []
        tokens = prompt + (reply if len(reply) == count else [UNKNOWN] * count)
        extras = extra_keys((len(tokens) - 1) // size, salt=line["body"].get("cache_salt"))
        request = Request(prompt=len(prompt), reply=count, keys=chain(tokens, size, extras))
        instance.submit(request)
        batches: list[list[Event[Request]]] = []
        while step := instance.begin(0.0):
            instance.finish(step)
            batches += [list(step.events)] if step.events else []
        yield batches, request, line


def shape(event: Event[Request]) -> tuple[object, ...]:
    match event:
        case Stored():
            return "stored", event.count, event.parent is None
        case Removed():
            return "removed", 1
        case Cleared():
            return ("cleared",)


def wire_shape(event: WireEvent) -> tuple[object, ...]:
    match event:
        case BlockStored():
            return "stored", len(event.block_hashes), event.parent_block_hash is None
        case BlockRemoved():
            return "removed", len(event.block_hashes)
        case AllBlocksCleared():
            return ("cleared",)


def keys(event: Event[Request]) -> list[object]:
    match event:
        case Stored():
            return [event.parent, *event.keys]
        case Removed(key):
            return [key]
        case Cleared():
            return []


def wire_hashes(event: WireEvent) -> list[object]:
    match event:
        case BlockStored():
            return [event.parent_block_hash, *event.block_hashes]
        case BlockRemoved():
            return list(event.block_hashes)
        case AllBlocksCleared():
            return []
