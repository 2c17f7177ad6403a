"""Record what vLLM's own cache manager does with KV-cache groups of several kinds and block sizes: no model, no server.

    PYTHON_OF_VLLM tests/vllm/record_groups.py DIR

Runs in an environment with vLLM (`make test-vllm` makes one). Sessions of several turns, some of which begin alike,
go through `KVCacheManager` as the scheduler would send them, in a cache so small that blocks leave it. Each file in DIR
is a recording as tests/fixtures/README.md describes it; `cached_tokens` is what the manager found for the prompt.
"""

from __future__ import annotations

import gzip
import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, partial_hash_hits_enabled
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

CHUNK = 256  # tokens of a prefill step
EPOCH = 1.8e9  # seconds: so that files are the same whenever they are recorded
LAYER: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}


def full(block_size: int) -> KVCacheSpec:
    return FullAttentionSpec(block_size=block_size, **LAYER)


def mla(block_size: int) -> KVCacheSpec:
    return MLAAttentionSpec(block_size=block_size, **LAYER)


def window(block_size: int, tokens: int) -> KVCacheSpec:
    return SlidingWindowSpec(block_size=block_size, sliding_window=tokens, **LAYER)


def window_mla(block_size: int, tokens: int) -> KVCacheSpec:
    return SlidingWindowMLASpec(block_size=block_size, sliding_window=tokens, **LAYER)


def mamba(block_size: int) -> KVCacheSpec:
    return MambaSpec(block_size=block_size, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode="align")


# Groups as in the models, most of them with smaller windows to keep the files small; blocks of the cache; by how much
# prompts are longer than the shortest that make sense.
MODELS: dict[str, tuple[list[KVCacheSpec], int, int]] = {
    "gemma4": ([window(16, 128), window(16, 128), full(32)], 280, 1),
    "deepseek_v4": ([mla(256), window_mla(64, 128), window_mla(4, 8), window_mla(8, 128)], 900, 3),
    "kimi_linear": ([mla(16), mamba(64), mamba(64)], 280, 1),
    "qwen3_next": ([full(64), mamba(64)], 70, 1),
    "wide_window_blocks": ([full(16), window(64, 256)], 280, 1),
    "two_whole": ([full(16), mla(64), window(32, 64)], 330, 1),
}


class Engine:
    """One instance's cache, and what it publishes."""

    def __init__(self, specs: list[KVCacheSpec], blocks: int) -> None:
        sizes = [spec.block_size for spec in specs]
        groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)]
        self.align, hash_size = math.lcm(*sizes), math.gcd(*sizes)
        self.state_size = next((spec.block_size for spec in specs if isinstance(spec, MambaSpec)), None)
        self.fine = hash_size if partial_hash_hits_enabled(groups, hash_size) else None
        self.manager = KVCacheManager(
            KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups),
            max_model_len=100_000,
            max_in_flight_tokens=CHUNK,
            scheduler_block_size=self.align,
            hash_block_size=hash_size,
            enable_kv_cache_events=True,
        )
        self.hasher = get_request_block_hasher(hash_size, sha256)
        self.sequence = 0
        self.time = 0.0

    def serve(self, name: str, prompt: list[int], reply: list[int]) -> Iterator[dict[str, Any]]:
        """The lines of one request: the request as it is sent, and the events of each of its steps."""
        request = Request(name, prompt, SamplingParams(max_tokens=1), None, block_hasher=self.hasher)
        blocks, cached, boundary = self.manager.get_computed_blocks(request)
        request.shared_prefix_boundary = boundary
        sent = {
            "kind": "request",
            "t": self.now(),
            "body": {"model": "tiny"},
            "session": name,
            "note": name,
            "response_usage": {"prompt_tokens_details": {"cached_tokens": cached}},
            "prompt_token_ids": prompt,
        }
        steps: list[dict[str, Any]] = []
        computed, found = cached, (cached, blocks)
        while computed < len(prompt):
            count = self.chunk(computed, len(prompt)) - computed
            assert self.manager.allocate_slots(request, count, *found) is not None
            found = ()
            computed += count
            request.num_computed_tokens = computed
            steps += self.step()
        for token in reply:
            request.append_output_token_ids(token)
            assert self.manager.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
            steps += self.step()
        self.manager.free(request)
        yield sent | {"t_done": self.now()}
        yield from steps

    def chunk(self, start: int, length: int) -> int:
        """Where a step that begins at a token ends: where a state-space group must keep its state, at the latest."""
        end = min(start + CHUNK, length)
        if self.state_size is not None and end > start:
            size = self.state_size
            if end < length:
                end = max(end // size * size, start + 1)
            stops = [(length - 1) // size * size]
            if start % size:
                stops.append((start // size + 1) * size)
            if self.fine:
                stops.append((length - 1) // self.fine * self.fine)
            end = min([stop for stop in stops if start < stop < end], default=end)
        return end

    def step(self) -> Iterator[dict[str, Any]]:
        self.manager.new_step_starts()
        if events := self.manager.take_events():
            payload = msgspec.msgpack.encode([EPOCH + self.time, events, None])
            yield {"kind": "event", "t": self.now(), "topic": "", "seq": self.sequence, "payload_hex": payload.hex()}
            self.sequence += 1

    def now(self) -> float:
        self.time += 1
        return self.time


def text(seed: int, length: int) -> list[int]:
    """Tokens that differ from text to text and compress well."""
    return [256 + (seed * 977 + place * 31) % 3000 for place in range(length)]


def record(specs: list[KVCacheSpec], blocks: int, longer: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(7)
    engine = Engine(specs, blocks)
    yield {"kind": "meta", "vllm_version": "0.32.0", "note": "KVCacheManager alone", "num_blocks": blocks}
    system = text(1, 200 * longer)
    sessions = {
        n: system[: rng.choice([0, 200 * longer])] + text(10 + n, longer * rng.randrange(50, 300)) for n in range(6)
    }
    for turn in range(8 - longer):
        for n in rng.sample(sorted(sessions), 4):
            reply = text(1000 + 100 * turn + n, rng.randrange(1, 90))
            yield from engine.serve(f"session {n} turn {turn}", sessions[n], reply)
            sessions[n] = sessions[n] + reply + text(5000 + 100 * turn + n, longer * rng.randrange(5, 120))
            if rng.random() < 0.1:
                yield from engine.serve(f"session {n} turn {turn} again", sessions[n], reply[:1])


def main() -> None:
    init_none_hash(sha256)
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for name, model in MODELS.items():
        lines = [json.dumps(line) for line in record(*model)]
        with gzip.GzipFile(target / f"{name}.jsonl.gz", "wb", mtime=0) as file:
            file.write(("\n".join(lines) + "\n").encode())
        requests = [json.loads(line) for line in lines if '"request"' in line]
        cached = [r["response_usage"]["prompt_tokens_details"]["cached_tokens"] for r in requests]
        print(name, len(lines), "lines", cached, [len(r["prompt_token_ids"]) for r in requests])


if __name__ == "__main__":
    main()
