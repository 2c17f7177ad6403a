"""The budget of bytes that all bodies share while they are collected."""

from __future__ import annotations

from extproc.processor.room import Room


def test_what_is_taken_is_gone_until_it_is_given_back() -> None:
    """Beyond the total nothing is granted, and a refusal costs nothing."""
    room = Room(100)
    assert room.take(60)
    assert not room.take(41)
    assert room.take(40)
    assert not room.take(1)
    room.give_back(60)
    assert room.take(60)
