"""The ZMQ messages around a batch, as vLLM and SGLang send them: published, and replayed to a DEALER. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from extproc.kv_events.engines import UnusableEvents

END = -1  # the number of a replay's last frame


class Message(NamedTuple):
    """A numbered batch."""

    sequence: int
    payload: bytes


def request(start: int) -> list[bytes]:
    """What a DEALER asks for all batches from `start` on; without the empty frame it is not answered."""
    return [b"", start.to_bytes(8, "big")]


def published(frames: Sequence[bytes]) -> Message:
    """Topic, number and payload. Raises `UnusableEvents` (`frames`, `sequence`)."""
    if len(frames) != 3:
        raise UnusableEvents("frames", f"{len(frames)} frames")
    return Message(_number(frames[1], 0), frames[2])


def replayed(frames: Sequence[bytes]) -> Message:
    """An empty frame, the topic from vLLM 0.28 on, number and payload. Raises `UnusableEvents` as `published` does."""
    if len(frames) not in {3, 4} or frames[0]:
        raise UnusableEvents("frames", f"{len(frames)} frames")
    return Message(_number(frames[-2], END), frames[-1])


def _number(frame: bytes, least: int) -> int:
    number = int.from_bytes(frame[:8], "big", signed=True)
    if len(frame) != 8 or number < least:
        raise UnusableEvents("sequence", frame[:16].hex())
    return number
