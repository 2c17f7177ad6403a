"""What stands between us and an engine's events, in words: each with a real port."""

from __future__ import annotations

import asyncio
import logging

import pytest

from extproc.base import metrics
from extproc.base.model import Instance, Knowledge
from extproc.kv_events import reachability
from extproc.kv_events.follower import Follower
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from tests.support.following import NAME, POOL, RECORDED, FailingIndex, counted, instance, until, where
from tests.support.kv_publisher import Publisher
from tests.support.redis_server import free_port


async def test_a_closed_port_is_called_so() -> None:
    """The most likely mistake: nobody listens there."""
    address = f"tcp://127.0.0.1:{free_port()}"
    said = await reachability.why_no_events(address, bound=False)
    assert said.startswith(address)
    assert "refused" in said or "Connect call failed" in said


async def test_another_service_is_told_from_silence() -> None:
    """A port that is open and publishes nothing."""
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert "does not publish over ZMQ" in await reachability.why_no_events(f"tcp://127.0.0.1:{port}", bound=False)
    server.close()
    await server.wait_closed()


async def test_a_replay_has_words_of_its_own() -> None:
    """The option that names its port is another one."""
    assert "replay_endpoint" in await reachability.why_no_replay(f"tcp://127.0.0.1:{free_port()}")
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert "answers no replay" in await reachability.why_no_replay(f"tcp://127.0.0.1:{port}")
    server.close()
    await server.wait_closed()


async def test_silence_is_a_firewall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets that are dropped: the look ends by itself."""
    monkeypatch.setattr(reachability, "LOOK_S", 0.05)

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", never)
    assert "does not answer" in await reachability.why_no_events("tcp://127.0.0.1:1", bound=False)


async def test_other_addresses_have_words_too() -> None:
    """One that we bind waits for the engine; what is no TCP address is called so."""
    assert "no engine has connected" in await reachability.why_no_events("tcp://*:5557", bound=True)
    assert "no address of the form" in await reachability.why_no_events("ipc:///tmp/x", bound=False)


async def test_an_event_port_that_is_never_reached_is_said(
    index: FailingIndex, vocabulary: Vocabulary, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, with address and cause, in log, report and metric; it clears itself when the engine comes."""
    monkeypatch.setattr(reachability, "UNREACHED_S", 0.2)
    publisher = Publisher()
    there = instance(publisher)
    publisher.close()
    follower = Follower(POOL, vocabulary, 256, index)
    with caplog.at_level(logging.INFO):
        follower.follow([there])
        await until(lambda: bool(follower.reports()[NAME].cause))
        assert follower.reports()[NAME].state is Knowledge.UNKNOWN
        assert str(there.kv_events) in follower.reports()[NAME].cause
        assert counted(metrics.EVENTS_CONNECTED, POOL, NAME) == 0
        await asyncio.sleep(0.5)
        (said,) = [record for record in caplog.records if "not reached" in record.getMessage()]
        assert said.levelno == logging.WARNING
        assert str(there.kv_events) in said.getMessage()
        again = Publisher(events=str(there.kv_events), replay=there.kv_replay)
        again.publish(*RECORDED[:3])
        await until(lambda: where(follower)[0] is Knowledge.EXACT)
        assert follower.reports()[NAME].cause == ""
        await until(lambda: counted(metrics.EVENTS_CONNECTED, POOL, NAME) == 1)
        assert any(record.getMessage().endswith(": reached") for record in caplog.records)
    await follower.close()
    again.close()


async def test_what_lasts_is_said_again(
    index: FailingIndex, vocabulary: Vocabulary, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rarely, for those who read only the newest lines of a log."""
    monkeypatch.setattr(reachability, "UNREACHED_S", 0.05)
    monkeypatch.setattr(reachability, "AGAIN_S", 0.05)
    follower = Follower(POOL, vocabulary, 256, index)
    follower.follow([Instance(NAME, kv_events=f"tcp://127.0.0.1:{free_port()}")])
    await until(lambda: len([record for record in caplog.records if "not reached" in record.getMessage()]) > 1)
    await follower.close()


async def test_a_port_that_ends_every_connection_is_said(
    index: FailingIndex, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of HTTP refuses ZMQ's greeting again and again: none of these refusals puts the warning off."""
    monkeypatch.setattr(reachability, "UNREACHED_S", 2.0)  # longer than from one attempt to the next

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    follower = Follower(POOL, vocabulary, 256, index)
    follower.follow([Instance(NAME, kv_events=address)])
    await until(lambda: bool(follower.reports()[NAME].cause))
    assert f"{address}, but it does not publish over ZMQ" in follower.reports()[NAME].cause
    await follower.close()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("answers", [True, False])
async def test_a_replay_port_that_does_not_answer_is_said(
    index: FailingIndex,
    vocabulary: Vocabulary,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    answers: bool,
) -> None:
    """Events come, and the state is unknown: the wrong port is named. Later batches do not take the warning back."""
    monkeypatch.setattr("extproc.kv_events.continuity.REPLAY_TIMEOUT", 0.2)
    publisher = Publisher()
    publisher.publish(*RECORDED[:3])
    wrong = f"tcp://127.0.0.1:{free_port()}"
    follower = Follower(POOL, vocabulary, 256, index)
    with caplog.at_level(logging.WARNING):
        follower.follow([Instance(NAME, kv_events=publisher.events, kv_replay=publisher.replay if answers else wrong)])
        if answers:
            await until(lambda: where(follower) == (Knowledge.EXACT, 2))
            await asyncio.sleep(0.5)
            assert not caplog.records
        else:
            await until(lambda: wrong in follower.reports()[NAME].cause)
            publisher.publish(*RECORDED[3:9])
            await until(lambda: where(follower) == (Knowledge.UNKNOWN, 8))
            assert wrong in follower.reports()[NAME].cause
            (said,) = [record.getMessage() for record in caplog.records if "replay does not answer" in record.message]
            assert wrong in said
    await follower.close()
    publisher.close()
