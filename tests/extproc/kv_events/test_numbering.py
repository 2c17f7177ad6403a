"""Which input a numbered batch is, and which batches are held."""

from __future__ import annotations

from extproc.kv_events import numbering
from extproc.kv_events.actions import Input
from extproc.kv_events.engines.frames import END
from extproc.kv_events.numbering import Numbering


def test_what_a_batch_is_that_was_heard() -> None:
    """A new number is the expected one or ahead of it; an old one is a duplicate only by its bytes."""
    numbers = Numbering()
    assert numbers.heard(7, b"a") is Input.NEXT, "any is expected at first"
    numbers.next = 8
    assert numbers.heard(8, b"b") is Input.NEXT
    assert numbers.heard(10, b"d") is Input.AHEAD
    assert numbers.heard(8, b"b") is Input.SEEN
    assert numbers.heard(8, b"other") is Input.FALLEN
    assert numbers.heard(7, b"a") is Input.FALLEN, "what was heard of the engine before says nothing of its successor"


def test_memory_of_duplicates_is_bounded() -> None:
    """A number that was heard too long ago is a restarted engine's."""
    numbers = Numbering()
    for number in range(numbering.REMEMBERED + 1):
        numbers.heard(number, b"same")
    assert numbers.heard(1, b"same") is Input.SEEN
    assert numbers.heard(0, b"same") is Input.FALLEN


def test_what_a_replayed_frame_is() -> None:
    """Its last frame has a number of its own."""
    numbers = Numbering()
    numbers.next = 3
    assert numbers.replayed(2) is Input.REPLAYED_SEEN
    assert numbers.replayed(3) is Input.REPLAYED_NEXT
    assert numbers.replayed(5) is Input.REPLAYED_AHEAD
    assert numbers.replayed(END) is Input.REPLAYED_END


def test_held_batches_are_released_in_order() -> None:
    """Up to the first gap; what is known already is dropped on the way."""
    numbers = Numbering()
    for number in (3, 4, 5, 7):
        numbers.hold(number, b"%d" % number)
    numbers.next = 4
    released = []
    for number, _ in numbers.release():
        released.append(number)
        numbers.next = number + 1
    assert released == [4, 5]
    assert numbers.holds
    assert numbers.drop_held() == [(7, b"7")]
    assert not numbers.holds


def test_what_is_held_is_bounded() -> None:
    """By number and by bytes; what is beyond is a gap afterwards."""
    numbers = Numbering()
    for number in range(numbering.HELD_BATCHES + 9):
        numbers.hold(number, b"")
    assert len(numbers.drop_held()) == numbering.HELD_BATCHES
    for number in range(9):
        numbers.hold(number, bytes(numbering.HELD_BYTES // 4))
    assert len(numbers.drop_held()) == 4
