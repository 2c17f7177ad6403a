"""KV events and replays, where a peer answers in its own way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from extproc.base.model import Instance
from extproc.cli.check_live import events
from extproc.cli.check_live.findings import Outcome
from tests.support.kv_publisher import Publisher


@contextmanager
def publisher(**options: bool) -> Iterator[Publisher]:
    found = Publisher(**options)
    try:
        yield found
    finally:
        found.close()


def instance(events_at: str | None, replay_at: str | None = None) -> Instance:
    return Instance("10.0.0.1:8000", kv_events=events_at, kv_replay=replay_at)


@pytest.mark.parametrize("topic_in_replay", [True, False])
async def test_an_engine_that_published_much(topic_in_replay: bool) -> None:
    """Nothing of it is replayed for a try, and both forms of the answer are understood."""
    with publisher(topic_in_replay=topic_in_replay) as engine:
        engine.send([b"batch"] * 100)
        one = instance(engine.events, engine.replay)
        assert (await events.events("pool", one)).outcome is Outcome.OK
        assert (await events.replay("pool", one)).said == "answers (nothing to replay)"


async def test_a_port_of_ours_cannot_be_tried() -> None:
    """Engines connect to it."""
    assert (await events.events("pool", instance("tcp://0.0.0.0:5557"))).outcome is Outcome.UNKNOWN


async def test_a_router_that_answers_otherwise() -> None:
    """Another application's."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")

    def answer() -> None:
        identity, *_ = router.recv_multipart()
        router.send_multipart([identity, b"hello"])

    thread = threading.Thread(target=answer)
    thread.start()
    found = await events.replay("pool", instance(None, f"tcp://127.0.0.1:{port}"))
    thread.join()
    context.destroy(linger=0)
    assert found.outcome is Outcome.FAILED
    assert "no replay" in found.said
