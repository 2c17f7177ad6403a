"""blocks.py: equal keys mean equal prefixes, and nothing that separates caches shares a key."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from extproc.base import blocks

SIZES = st.integers(1, 9)
NAMES = st.text(max_size=4)

# A machine that is busy with other tests must not fail one of these.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_a_key_is_xxh3_of_the_block_seeded_with_the_key_before() -> None:
    """The formula is public: any other writer of the index must find the same keys."""
    first = xxh3_64_intdigest(b"abcd", 7)
    assert blocks.extend(b"abcdefghi", 7, 4) == [first, xxh3_64_intdigest(b"efgh", first)]
    assert blocks.DEFAULT_SIZE == 256
    assert len(blocks.extend(bytes(1000), 7)) == 3


@UNHURRIED
@given(st.binary(max_size=60), SIZES, st.integers(0, 2**64 - 1))
def test_only_whole_blocks_have_keys(data: bytes, size: int, seed: int) -> None:
    """The partial block at a prompt's end is never looked up, and keys are unsigned 64-bit integers."""
    keys = blocks.extend(data, seed, size)
    assert len(keys) == len(data) // size
    assert all(0 <= key < 2**64 for key in keys)


@UNHURRIED
@given(st.binary(max_size=60), st.binary(max_size=60), SIZES, st.integers(0, 2**64 - 1))
def test_a_chain_can_be_continued_anywhere(head: bytes, tail: bytes, size: int, seed: int) -> None:
    """Events bring a prompt in pieces, a request brings it whole; both come to the same keys."""
    head = head[: len(head) // size * size]
    begun = blocks.extend(head, seed, size)
    assert blocks.extend(head + tail, seed, size) == begun + blocks.extend(tail, begun[-1] if begun else seed, size)


@UNHURRIED
@given(st.binary(min_size=1, max_size=60), st.data(), SIZES)
def test_chains_part_at_the_first_block_that_differs(data: bytes, draw: st.DataObject, size: int) -> None:
    """One changed byte changes its block's key and every later one, and no earlier one."""
    place = draw.draw(st.integers(0, len(data) - 1))
    changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    one, other = blocks.extend(data, 1, size), blocks.extend(changed, 1, size)
    assert [a == b for a, b in zip(one, other, strict=True)] == [block < place // size for block in range(len(one))]


@UNHURRIED
@given(st.lists(st.tuples(NAMES, NAMES, NAMES), min_size=2, max_size=8, unique=True))
def test_pools_adapters_and_salts_share_nothing(caches: list[tuple[str, str, str]]) -> None:
    """Different caches have different roots, wherever the boundary between their names lies."""
    roots = sorted(blocks.root(*cache) for cache in caches)
    assert all(one != other for one, other in pairwise(roots))


def test_no_adapter_is_the_base_model() -> None:
    """An empty name and no name are the same cache, on the request side and in events."""
    assert blocks.root("p") == blocks.root("p", "", "") == blocks.root("p", None, None)
    assert len({blocks.root("p"), blocks.root("p", "a"), blocks.root("p", None, "a"), blocks.root("pa")}) == 4


def test_a_secret_changes_every_root() -> None:
    """Of any length; the same one gives the same root."""
    made = [blocks.root("p", secret=secret) for secret in (b"", b"a", b"b", bytes(16), bytes(64), b"x" * 1000)]
    assert len(set(made)) == len(made)
    assert blocks.root("p", "a", "s", secret=b"a") == blocks.root("p", "a", "s", secret=b"a")


def collision(seed: int) -> tuple[bytes, bytes]:
    """Two blocks with one key, by arithmetic: for whoever knows the seed. Of a block of more than 240 bytes, xxh3_64
    multiplies the halves of each word, mixed with its constants and the seed. Where both products of one column are
    made 0, only the sum of two words counts."""
    constants = [(0xBE4BA423396CFEB8 + seed) % 2**64, (0x1CAD21F72C81017C - seed) % 2**64]
    found = []
    for halves in ((100, 200), (101, 199)):
        block = bytearray(blocks.DEFAULT_SIZE)
        for stripe, (half, constant) in enumerate(zip(halves, constants, strict=True)):
            block[64 * stripe : 64 * stripe + 8] = (half << 32 | constant % 2**32).to_bytes(8, "little")
        found.append(bytes(block))
    return found[0], found[1]


def test_keys_cannot_be_forged_without_the_secret() -> None:
    """Two different prompts whose keys are all equal are made in no time where the root can be computed, and the same
    two have different keys where it cannot."""
    prompts, seed = [b"", b""], blocks.root("engines")
    for _ in range(50):
        pair = collision(seed)
        (seed,) = {key for block in pair for key in blocks.extend(block, seed)}
        prompts = [prompt + block for prompt, block in zip(prompts, pair, strict=True)]
    assert prompts[0] != prompts[1]
    assert blocks.extend(prompts[0], blocks.root("engines")) == blocks.extend(prompts[1], blocks.root("engines"))
    for number in range(100):
        root = blocks.root("engines", secret=number.to_bytes(16, "big"))
        one, other = (blocks.extend(prompt, root) for prompt in prompts)
        assert not set(one) & set(other)


def test_what_a_secret_does_not_stop() -> None:
    """Of two blocks that differ in the top bits of two words of one column, both mixed with the seed in the same way,
    the keys are equal under about two of a thousand seeds: SECURITY.md says so."""
    column, likely = 8 * 6, 0xC9142084  # the likeliest difference between the column's first and third constant
    one = bytearray(range(256))
    first, third = (int.from_bytes(one[column : column + 8], "little"), 0)
    third = 0x1234567 << 32 | (first ^ likely) % 2**32
    one[column + 128 : column + 136] = third.to_bytes(8, "little")
    other = bytearray(one)
    for place in (column + 7, column + 135):
        other[place] ^= 0x80
    random = Random(1)
    seeds = [random.getrandbits(64) for _ in range(100_000)]
    equal = sum(blocks.extend(bytes(one), seed) == blocks.extend(bytes(other), seed) for seed in seeds)
    assert 100 < equal < 1000
