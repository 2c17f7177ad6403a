"""ZMQ messages around a batch, against those that were recorded."""

from __future__ import annotations

import pytest

from extproc.kv_events.engines import UnusableEvents, frames
from tests.support import kv_recordings


def test_published_messages_have_a_topic_or_an_empty_one() -> None:
    """The topic is no part of what is understood."""
    number, payload = (5).to_bytes(8, "big"), b"payload"
    assert frames.published([b"kv@127.0.0.1:8120@tiny", number, payload]) == (5, payload)
    assert frames.published([b"", number, payload]) == (5, payload)


def test_recorded_replays_are_the_recorded_events() -> None:
    """Observation 10: with the topic (from 0.28) every frame repeats what was published, and the end is told apart."""
    lines = kv_recordings.lines("0.32.0/I_replay_restart")
    replays = {
        tag: [
            frames.replayed([bytes.fromhex(frame) for frame in line["frames_hex"]])
            for line in lines
            if line["kind"] == "replay" and line["tag"] == tag
        ]
        for tag in {line["tag"] for line in lines if line["kind"] == "replay"}
    }
    heard = [tuple(frames.published(kv_recordings.message(line))) for line in lines if line["kind"] == "event"]
    assert replays["from0"] == [*heard[:8], (frames.END, b"")]
    assert replays["from3"] == [*heard[3:8], (frames.END, b"")]
    assert replays["short"] == [*heard[1:8], (frames.END, b"")]
    assert replays["empty"] == replays["beyond"] == replays["minus1"] == [(frames.END, b"")]


def test_replays_without_a_topic() -> None:
    """To 0.24, and SGLang: three frames, also at the end."""
    assert frames.replayed([b"", (3).to_bytes(8, "big"), b"p"]) == (3, b"p")
    assert frames.replayed([b"", b"\xff" * 8, b""]).sequence == frames.END


def test_a_request_is_what_engines_answer() -> None:
    """The empty frame, and eight bytes; as recorded."""
    recorded = [line for line in kv_recordings.lines("0.32.0/I_replay_restart") if line["kind"] == "replay_request"]
    asked = {line["tag"]: [bytes.fromhex(frame) for frame in line["frames_hex"]] for line in recorded}
    assert frames.request(0) == asked["from0"]
    assert frames.request(3) == asked["from3"]


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        ("frames", []),
        ("frames", [b"only"]),
        ("frames", [b"", bytes(8)]),
        ("frames", [b"", b"", bytes(8), b""]),
        ("sequence", [b"", b"", b""]),
        ("sequence", [b"", bytes(7), b""]),
        ("sequence", [b"", bytes(9), b""]),
        ("sequence", [b"", b"\xff" * 8, b""]),  # -1
        ("sequence", [b"", b"\x80" + bytes(7), b""]),
    ],
)
def test_a_published_message_of_another_shape_is_refused(cause: str, message: list[bytes]) -> None:
    """Wrong frame counts, and numbers that are negative or not eight bytes long."""
    with pytest.raises(UnusableEvents) as caught:
        frames.published(message)
    assert caught.value.cause == cause


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        ("frames", [b"", bytes(8)]),
        ("frames", [b"topic", bytes(8), b""]),
        ("frames", [b"", b"", b"", bytes(8), b""]),
        ("sequence", [b"", b"", b""]),
        ("sequence", [b"", b"\xff" * 7 + b"\xfe", b""]),  # -2
    ],
)
def test_a_replayed_message_of_another_shape_is_refused(cause: str, message: list[bytes]) -> None:
    """-1 ends a replay; no other negative number means anything."""
    with pytest.raises(UnusableEvents) as caught:
        frames.replayed(message)
    assert caught.value.cause == cause
