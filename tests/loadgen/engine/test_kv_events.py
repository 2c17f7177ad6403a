"""The wire format of the simulated engine is vLLM's, to the byte."""

from __future__ import annotations

import msgspec
import pytest

from loadgen.engine.kv_events import Format, Wire
from tests.support.recordings import lines, names

MAPS = names("0.24.0", "0.32.0", "0.32.0-dp2", "0.32.0-hybrid", "0.32.0-render", "0.32.0-sha256-bytes")
ARRAYS = names("0.23.0")


@pytest.mark.parametrize(
    ("name", "style"), [(name, Format.MAPS) for name in MAPS] + [(name, Format.ARRAYS) for name in ARRAYS]
)
def test_recorded_payloads_survive_decoding_and_encoding(name: str, style: Format) -> None:
    """Every payload that vLLM ever sent here comes out of our classes as the same bytes."""
    wire = Wire(style)
    payloads = [bytes.fromhex(line["payload_hex"]) for line in lines(name) if line["kind"] == "event"]
    assert payloads
    assert [wire.encode(wire.decode(payload)) for payload in payloads] == payloads


@pytest.mark.parametrize(("name", "style"), [(MAPS[0], Format.ARRAYS), (ARRAYS[0], Format.MAPS)])
def test_the_formats_are_not_confused(name: str, style: Format) -> None:
    """A payload of one format is refused by the other, not half understood."""
    payload = next(bytes.fromhex(line["payload_hex"]) for line in lines(name) if line["kind"] == "event")
    with pytest.raises(msgspec.DecodeError):
        Wire(style).decode(payload)


def test_replay_frames_are_those_of_vllm_0_32() -> None:
    """A replay consists of the frames that a DEALER received from vLLM 0.32, the end marker included."""
    wire = Wire(Format.MAPS)
    replays = [line["frames_hex"] for line in lines("0.32.0/I_replay_restart") if line["kind"] == "replay"]
    for frames in ([bytes.fromhex(frame) for frame in replay] for replay in replays):
        if frames[2] == Wire.END:
            assert wire.replay_end() == frames
        else:
            assert wire.replayed(frames[1], int.from_bytes(frames[2], "big"), frames[3]) == frames


def test_replay_frames_of_older_versions_have_no_topic() -> None:
    """Up to 0.24 the topic is missing from a replay and from its end."""
    wire = Wire(Format.ARRAYS)
    assert wire.replayed(b"topic", 7, b"payload") == [b"", (7).to_bytes(8, "big"), b"payload"]
    assert wire.replay_end() == [b"", b"\xff" * 8, b""]
