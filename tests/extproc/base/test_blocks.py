"""blocks.py: equal keys mean equal prefixes, and nothing that separates caches shares a key."""

from __future__ import annotations

from itertools import pairwise

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
