"""The replay against servers that do what none should: whatever they send, the run goes on and its rows can be read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadgen.command_error import CommandError
from loadgen.replay import chat_request
from loadgen.results.measures import measure
from loadgen.results.records import CSV, ROWS, RUN, Row, RunInfo, RunWriter, read_info, read_rows
from tests.loadgen.replay.test_replay import PAIR, request, run, trace, written

MODELS = b'{"data": [{"id": "tiny"}]}'
TOKEN = b'data: {"choices": [{"delta": {"content": " so"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"
TWO = trace(request("a/0"), request("b/0"))  # neither waits for the other


@asynccontextmanager
async def answering(answer: bytes, models: bytes = MODELS) -> AsyncIterator[tuple[str, list[bytes]]]:
    """The URL of a server that answers each request for a chat with these bytes, and the bodies that it got."""
    bodies: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if head.startswith(b"get"):
            writer.write(HEAD + models)
        else:
            if b"content-length:" in head:
                size = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
                bodies.append(await reader.readexactly(size))
            else:
                bodies.append(await reader.readuntil(b"\r\n0\r\n\r\n"))
            writer.write(answer)
        try:
            await writer.drain()
        except ConnectionError:
            return  # the client has had enough
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (HEAD + b'data: {"x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}\n\n" + DONE, "RecursionError"),
        (HEAD + b'data: {"error": ' + b"[" * 50_000 + b"]" * 50_000 + b"}\n\n" + DONE, "RecursionError"),
        (HEAD + b"data: " + b"x" * 2**20, "does not end"),
        (HEAD + TOKEN * 2**12, "does not end"),
        (b"HTTP/1.1 500 X\r\nconnection: close\r\n\r\n" + b"x" * 2**20, "does not end"),
        (b"HTTP/1.1 500 \xff\x1b[2J\r\ncontent-length: 0\r\n\r\n", "\ufffd"),
        (b"HTTP/1.1 500 X\r\ncontent-length: 5\r\n\r\n\xff\x1b[2J", "\ufffd\ufffd[2J"),
        (HEAD + b'data: {"error": "\\u001b[2J"}\n\n' + DONE, "\ufffd[2J"),
        (HEAD + b'data: {"choices": [{"delta": {"content": "\\ud83d"}}]}\n\n' + DONE, "DecodeError"),
        (b"\x00\xff\xfe garbage\r\n\r\n", "ClientResponseError"),
        (HEAD + TOKEN + b'data: {"usage": {"prompt_tokens": 1.5}}\n\n' + DONE, "ValidationError"),
        (b"", "ServerDisconnectedError"),
    ],
)
async def test_what_a_server_sends_fails_its_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, words: str
) -> None:
    """No answer ends the run: each request is a failed row that says why in plain text, and the exit code is 1."""
    monkeypatch.setattr(chat_request, "LONGEST_DOCUMENT", 2**19)
    monkeypatch.setattr(chat_request, "LONGEST_STREAM", 2**17)
    if answer.startswith(HEAD + b"data: x"):
        monkeypatch.setattr(chat_request, "LONGEST_STREAM", 2**28)
    path = written(tmp_path / "t.jsonl", TWO)
    async with answering(answer) as (url, _):
        assert await asyncio.to_thread(run, path, "--url", url, "--out", tmp_path / "out", "--export", "csv") == 1
    rows = list(read_rows(tmp_path / "out"))
    assert sorted(row.request for row in rows) == ["a/0", "b/0"]
    for row in rows:
        assert words in (row.error or "")
        assert "\x1b" not in (row.error or "")
    assert read_info(tmp_path / "out").complete


async def test_names_that_are_no_text(tmp_path: Path) -> None:
    """An instance's name that is no UTF-8 is kept with what is no character replaced, in rows, run and CSV."""
    answer = HEAD.replace(b"OK\r\n", b"OK\r\nx-engine: e\xff\xfe\r\n") + TOKEN + DONE
    out = tmp_path / "out"
    async with answering(answer) as (url, _):
        path = written(tmp_path / "t.jsonl", TWO)
        assert await asyncio.to_thread(run, path, "--url", url, "--out", out, "--export", "csv") == 0
    assert [row.instance for row in read_rows(out)] == ["e\ufffd\ufffd"] * 2
    assert read_info(out).instances == ["e\ufffd\ufffd"]
    assert "e\ufffd\ufffd" in (out / CSV).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("models", "asked"),
    [
        (b'{"data": [{"id": "\\ud83d"}]}', None),
        (b'{"data": [{"id": "m\\u001b"}]}', "m\ufffd"),
        (b'{"data": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", None),
        (b"\xff\xfe", None),
    ],
)
async def test_models_that_are_no_text(tmp_path: Path, models: bytes, asked: str | None) -> None:
    """A gateway that names its model in no readable way is used all the same."""
    path = written(tmp_path / "t.jsonl", TWO)
    async with answering(HEAD + TOKEN + DONE, models) as (url, bodies):
        assert await asyncio.to_thread(run, path, "--url", url, "--out", tmp_path / "out") == 0
    assert [json.loads(body[body.index(b"{") : body.rindex(b"}") + 1]).get("model") for body in bodies] == [asked] * 2


@pytest.mark.parametrize(
    ("prompt", "cached", "completion", "kept"),
    [
        (50, 20, 4, (50, 20, 4)),
        (50, 0, 0, (50, 0, 0)),
        (None, None, None, (40, None, 1)),
        (-5, -9, -7, (40, None, 1)),
        (10, 1000, 4, (10, None, 4)),
        (50, -1, 4, (50, None, 4)),
        (None, 30, 4, (40, None, 4)),
        (50, 20, 5, (50, 20, 1)),  # asked for: 4
        (2**70, 2**70, 2**70, (40, None, 1)),
        (10**400, 10**400, 10**400, (40, None, 1)),
    ],
)
async def test_counts_that_cannot_be_are_left_out(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    prompt: int | None,
    cached: int | None,
    completion: int | None,
    kept: tuple[int, int | None, int],
) -> None:
    """Of `usage`, a row keeps what can be; for the rest it has what an answer without usage gives, and the summary says
    so."""
    details = {"cached_tokens": cached}
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}
    answer = HEAD + TOKEN + b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n" + DONE
    out = tmp_path / "out"
    async with answering(answer) as (url, _):
        path = written(tmp_path / "t.jsonl", TWO)
        assert await asyncio.to_thread(run, path, "--url", url, "--out", out) == 0
    rows = list(read_rows(out))
    assert [(row.input, row.local, row.produced) for row in rows] == [kept] * 2
    doubtful = (prompt, cached, completion) not in [(None, None, None), kept]
    assert ("2 answers gave counts of tokens that cannot be" in capsys.readouterr().out) is doubtful
    found = measure(rows, read_info(out))
    assert found.tps >= 0
    assert not found.local > 1


async def test_a_full_disk_is_explained(tmp_path: Path) -> None:
    """Rows that cannot be written end the replay with an error that names the run."""
    path, out = written(tmp_path / "t.jsonl", PAIR), tmp_path / "out"
    out.mkdir()
    (out / ROWS).symlink_to("/dev/full")
    async with answering(HEAD + TOKEN + DONE) as (url, _):
        with pytest.raises(CommandError, match="out: No space left on device"):
            await asyncio.to_thread(run, path, "--url", url, "--out", out)
    assert not read_info(out).complete


def test_a_killed_run_has_its_rows(tmp_path: Path) -> None:
    """A row is in the file once it is added: what kills the process takes none with it."""
    info = RunInfo(
        kind="replay", label="", policy="", workload="", rate=1.0, seed=0, instances=[], window=(0.0, 1.0), settings={}
    )
    row = Row(request="a/0", session="a", turn=0, due_s=0.0, sent_s=0.0, input=1, output=1)
    with RunWriter(tmp_path, info) as writer:
        writer.add(row)
        assert list(read_rows(tmp_path)) == [row]
        assert not read_info(tmp_path).complete
    assert read_info(tmp_path).complete
    assert sorted(path.name for path in tmp_path.iterdir()) == [ROWS, RUN]
