"""Prompt blocks: a prompt's bytes as a chain of 64-bit keys, the same on the request side and on the event side.

A block is `size` consecutive bytes; its key is `xxh3_64(block, seed=key of the block before)`. The first block's seed,
the *root*, stands for everything that separates caches of equal bytes, and for a secret of the routers that share an
index. Equal keys therefore mean equal prefixes, unless somebody is at work: xxh3 with a secret seed keeps others from
computing keys, and from finding two prompts with one key by arithmetic alone, but it is no keyed cryptographic hash
(docs/decisions.md says what that leaves open). Only whole blocks have keys: a prompt's last, partial block is never
looked up.
"""

from __future__ import annotations

from hashlib import blake2b

from xxhash import xxh3_64_intdigest

DEFAULT_SIZE = 256  # bytes, about 64 tokens of text: four engine blocks of 16


SECRET_BYTES = 16  # of a secret that is drawn at random


def root(pool: str, lora: str | None = None, salt: str | None = None, *, secret: bytes = b"") -> int:
    """The seed of a chain's first block. Pools, LoRA adapters and cache salts never share blocks, and neither do
    routers with different secrets. A root tells nothing of the secret, or of another root."""
    parts = (pool, lora or "", salt or "")
    # Length prefixes keep ("ab", "c") and ("a", "bc") apart.
    joined = b"".join(b"%d:%b" % (len(raw), raw) for raw in (part.encode() for part in parts))
    return int.from_bytes(blake2b(joined, digest_size=8, key=secret[: blake2b.MAX_KEY_SIZE]).digest(), "little")


def extend(data: bytes, seed: int, size: int = DEFAULT_SIZE) -> list[int]:
    """Keys of the whole blocks of `data`, which continues the chain that ended in `seed` (a root where it starts)."""
    keys: list[int] = []
    append = keys.append
    for start in range(0, len(data) - size + 1, size):
        seed = xxh3_64_intdigest(data[start : start + size], seed)
        append(seed)
    return keys
