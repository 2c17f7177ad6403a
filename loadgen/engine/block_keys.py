"""Keys of engine blocks: a chain of hashes over (key of the block before, tokens, extra keys), as vLLM makes them.

The algorithm matters to the engine alone (vLLM has four), so this one is simply sha256. As in vLLM 0.32, the
root is fixed: equal prompts have equal keys in every process.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256

from loadgen.engine.media import Span, in_blocks

ROOT = sha256(b"smetric simulated engine").digest()

ExtraKeys = tuple[str | tuple[str, int], ...] | None


def extra_keys(
    count: int, lora: str | None = None, salt: str | None = None, *, size: int = 1, images: Sequence[Span] = ()
) -> list[ExtraKeys]:
    """What separates the caches of equal tokens, for each of `count` blocks of `size` tokens, in vLLM's order: the LoRA
    adapter in every block, the images in theirs, the cache salt in the first alone; None where there is nothing."""
    adapter: tuple[str, ...] = (lora,) if lora else ()
    keys: list[ExtraKeys] = [adapter or None] * count
    if images:
        keys = [(*adapter, *found) or None for found in in_blocks(images, count, size)]
    if count and salt:
        keys[0] = (*(keys[0] or ()), salt)
    return keys


def chain(tokens: Sequence[int], block_size: int, extras: Sequence[ExtraKeys]) -> list[bytes]:
    """Keys (32 bytes) of the first `len(extras)` whole blocks of `tokens`."""
    raw = array("I", tokens).tobytes()
    width = block_size * 4
    keys: list[bytes] = []
    key = ROOT
    for index, extra in enumerate(extras):
        material = key + raw[index * width : (index + 1) * width]
        if extra:
            material += repr(extra).encode()
        key = sha256(material).digest()
        keys.append(key)
    return keys


def as_int(key: bytes) -> int:
    """The 64-bit form in which vLLM publishes a key by default: its last 8 bytes, big-endian."""
    return int.from_bytes(key[-8:], "big")
