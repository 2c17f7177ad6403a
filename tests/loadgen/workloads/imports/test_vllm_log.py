"""vLLM's log becomes a workload, in the words of its versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.workloads.imports.vllm_log import read
from loadgen.workloads.trace import common
from loadgen.workloads.traces.lines import TraceError

FIRST = list(range(100))
SECOND = [*FIRST, *range(500, 540)]  # a reply of 20 and a message of 20
NEW = "(APIServer pid=7) DEBUG 12-01 10:00:{at:02} [request_logger.py:40] Request {id} details: prompt: {text!r}, "
NEW += "prompt_token_ids: {ids}, prompt_embeds shape: None.\n"
TOLD = "(APIServer pid=7) INFO 12-01 10:00:{at:02} [request_logger.py:52] Received request {id}: params: "
TOLD += "SamplingParams(n=1, stop_token_ids=[], max_tokens=20), lora_request: None.\n"
DONE = (
    "(APIServer pid=7) INFO 12-01 10:00:{at:02} [request_logger.py:80] Generated response {id} (streaming complete): "
)
DONE += "output: 'word word', output_token_ids: {ids}, finish_reason: stop\n"
OLD = "INFO 12-01 10:00:{at:02} [logger.py:43] Received request {id}: prompt: {text!r}, params: SamplingParams(n=1, "
OLD += "stop_token_ids=[1, 2]), prompt_token_ids: {ids}, prompt_embeds shape: None, lora_request: None.\n"
NOISE = 'INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n\n'


def log(tmp_path: Path, *lines: str) -> Path:
    (tmp_path / "vllm.log").write_text(NOISE + "".join(lines), "utf-8")
    return tmp_path / "vllm.log"


@pytest.mark.parametrize("asked", [NEW, OLD], ids=["0.32", "0.10"])
def test_prompts_by_their_token_ids(tmp_path: Path, asked: str) -> None:
    """A prompt that quotes a log line is not taken for one; a turn goes on from the one before."""
    text = "see prompt_token_ids: [9, 9], prompt_embeds shape"
    lines = [
        asked.format(at=1, id="chatcmpl-a-0", text=text, ids=FIRST),
        TOLD.format(at=1, id="chatcmpl-a-0"),
        DONE.format(at=3, id="chatcmpl-a-0", ids=list(range(500, 520))),
        asked.format(at=9, id="chatcmpl-b", text=text, ids=SECOND),
    ]
    trace, left_out = read(log(tmp_path, *lines))
    first, second = trace.requests
    assert left_out == 0
    assert (first.input, first.output, first.duration_s, first.arrival_s) == (100, 20, 2, 0)
    assert (second.input, second.parent, second.turn, second.arrival_s) == (140, first.id, 1, 8)
    assert common(first.blocks, second.blocks) == 6


def test_a_reply_without_ids_has_a_length_by_its_letters(tmp_path: Path) -> None:
    """Streamed replies are logged as text alone; deltas say nothing more."""
    delta = DONE.format(at=2, id="a", ids="None").replace("complete", "delta")
    lines = [NEW.format(at=1, id="a", text="", ids=FIRST), delta, DONE.format(at=5, id="a", ids="None")]
    trace, _ = read(log(tmp_path, *lines))
    assert (trace.requests[0].output, trace.requests[0].duration_s) == (len("'word word'") // 4, 4)


def test_logs_of_several_engines_are_one_workload(tmp_path: Path) -> None:
    """A folder of them: a session may have changed its engine."""
    (tmp_path / "1.log").write_text(NEW.format(at=1, id="a", text="", ids=FIRST), "utf-8")
    (tmp_path / "2.log").write_text(NEW.format(at=9, id="b", text="", ids=SECOND), "utf-8")
    trace, _ = read(tmp_path)
    assert [request.parent for request in trace.requests] == [None, "0"]


def test_a_log_without_ids_says_what_to_set(tmp_path: Path) -> None:
    """vLLM shows them at level DEBUG only; of a mixed log the rest is read and counted."""
    with pytest.raises(TraceError, match="VLLM_LOGGING_LEVEL=DEBUG"):
        read(log(tmp_path, TOLD.format(at=1, id="a")))
    trace, left_out = read(log(tmp_path, TOLD.format(at=1, id="a"), NEW.format(at=2, id="b", text="", ids=FIRST)))
    assert (len(trace.requests), left_out) == (1, 1)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (NEW.format(at=1, id="a", text="", ids=[2**40]), "token ids"),
        (NEW.format(at=99, id="a", text="", ids=FIRST), "month"),
        ("", "no requests"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, named: str) -> None:
    """With its number, and what was expected."""
    with pytest.raises(TraceError, match=named):
        read(log(tmp_path, line))
