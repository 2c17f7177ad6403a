"""Prompt blocks: a prompt's bytes as a chain of 64-bit keys, the same on the request side and on the event side.

A block is `size` consecutive bytes; its key is `xxh3_64(block, seed=key of the block before)`. The first block's seed,
the *root*, stands for everything that separates caches of equal bytes. Equal keys therefore mean equal prefixes, and
only whole blocks have keys: a prompt's last, partial block is never looked up.
"""

from __future__ import annotations

from xxhash import xxh3_64_intdigest

DEFAULT_SIZE = 256  # bytes, about 64 tokens of text: four engine blocks of 16


def root(pool: str, lora: str | None = None, salt: str | None = None) -> int:
    """The seed of a chain's first block. Pools, LoRA adapters and cache salts never share blocks."""
    parts = (pool, lora or "", salt or "")
    # Length prefixes keep ("ab", "c") and ("a", "bc") apart.
    return xxh3_64_intdigest(b"".join(b"%d:%b" % (len(raw), raw) for raw in (part.encode() for part in parts)))


def extend(data: bytes, seed: int, size: int = DEFAULT_SIZE) -> list[int]:
    """Keys of the whole blocks of `data`, which continues the chain that ended in `seed` (a root where it starts)."""
    keys: list[int] = []
    append = keys.append
    for start in range(0, len(data) - size + 1, size):
        seed = xxh3_64_intdigest(data[start : start + size], seed)
        append(seed)
    return keys
