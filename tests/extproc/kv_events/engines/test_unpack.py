"""Walking over msgpack, against msgspec's own encoder."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.kv_events.engines import UnusableEvents
from extproc.kv_events.engines.unpack import PIECE, array_header, container, walk

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=40)
    | st.sampled_from(
        [b"h" * 32, "k" * 300, b"b" * 70_000, msgspec.msgpack.Ext(5, b"e" * 7), msgspec.msgpack.Ext(5, b"e")]
    )
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=5), inner, max_size=20)
)


def walked(data: bytes, values: int = 1) -> tuple[int, int]:
    """Where it ends, and in how many pieces."""
    steps, pieces = walk(data, 0, values), 1
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return int(end.value), pieces
        pieces += 1


@given(st.lists(VALUES, max_size=5))
def test_it_ends_where_the_values_end(values: list[Any]) -> None:
    """Whatever they are, and whatever follows."""
    data = b"".join(map(msgspec.msgpack.encode, values))
    assert walked(data + b"\xc1more", len(values))[0] == len(data)


@given(VALUES, st.data())
def test_a_value_that_ends_too_early_is_garbage(value: Any, data: st.DataObject) -> None:
    """At every byte."""
    encoded = msgspec.msgpack.encode(value)
    with pytest.raises(UnusableEvents):
        walked(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@pytest.mark.parametrize("value", [1, 70_000, 2**40, b"h" * 32, [1, 2], {"a": []}, 1.5])
def test_a_long_list_is_walked_over_in_pieces(value: Any) -> None:
    """None of them is long, and there is one end."""
    data = msgspec.msgpack.encode([value] * 50_000)
    end, pieces = walked(data)
    assert end == len(data)
    assert 50_000 / PIECE - 1 < pieces <= 50_000 * 4 / PIECE + 1


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20) | st.dictionaries(st.text(max_size=3), st.none(), max_size=20))
def test_a_container_says_what_is_in_it(value: Any) -> None:
    """Its values start behind the header, and a map has two for each key."""
    data = msgspec.msgpack.encode(value)
    found = container(data, 0)
    assert (found.values, found.is_map) == (len(value) * (1 + isinstance(value, dict)), isinstance(value, dict))
    assert walked(data[found.start :], found.values)[0] == len(data) - found.start


@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
def test_a_header_begins_a_list(count: int) -> None:
    """Of that many values."""
    assert msgspec.msgpack.decode(array_header(count) + b"\x05" * count) == [5] * count
