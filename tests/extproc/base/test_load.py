"""Sums of loads: what one adds another takes away."""

from __future__ import annotations

import msgspec
import pytest

from extproc.base.load import IDLE, Load


def test_loads_add_up_and_come_to_nothing() -> None:
    """What was added and taken away leaves an idle instance, kind by kind."""
    one = Load(1, 700, 8_400)
    assert IDLE.plus(one, 3) == Load(3, 2_100, 25_200)
    assert IDLE.plus(one, 3).plus(one, -3) == IDLE


def test_what_one_has_beyond_another() -> None:
    """Kind by kind, and never less than nothing."""
    assert Load(3, 100, 5).beyond(Load(1, 400, 5)) == Load(2, 0, 0)


def test_nobody_tells_of_less_than_nothing() -> None:
    """A message of another router is checked before it counts."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Load(1, 2, 3)), type=Load) == Load(1, 2, 3)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode((1, -2, 3)), type=Load)
