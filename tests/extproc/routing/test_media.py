"""media.py: a session with images stays where it was sent, until the instance's own word ends that."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from extproc.base.model import Instance, Reason, Source
from extproc.index import Change, Index
from extproc.index.memory import MemoryIndex
from extproc.index.open import open_index
from extproc.index.routed_writer import Recorder
from extproc.prompts.renderer import PlainRenderer
from extproc.requests.paths import Api
from extproc.routing.media import hit as hit_of
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask, Media, Query
from extproc.routing.route import RouteSettings
from extproc.routing.router import Decision, Router
from tests.support.redis_server import RedisServer

Message = dict[str, Any]

SYSTEM = {"role": "system", "content": "You drive a browser and are careful. " * 100}
BLOCK = 256
LATER = 60.0  # seconds: no hint of a decision lives so long


@pytest.mark.parametrize(
    ("held", "asked", "hit"),
    [
        (100, 0, 100),  # it was asked for no reply
        (100, 1, 120),
        (100, 2, 140),  # for the last one too: it holds the whole history
        (80, 2, 140),  # but for the end of the text before the medium, that an engine's block cuts off
        (74, 2, 74),  # too much of that is gone
        (0, 2, 0),
        (130, 1, 130),  # where the events tell more, they count
    ],
)
def test_what_was_sent_counts_while_the_text_before_it_is_held(held: int, asked: int, hit: int) -> None:
    """In blocks: a prompt of 100 before its first medium and 50 behind it, with two replies that end at 120 and 140."""
    media = Media(turns=[1, 2, 3], ends=[120 * BLOCK, 140 * BLOCK], sent={"a": asked})
    query = Query(turn=2, history=140 * BLOCK, prompt=150 * BLOCK, chain=range(100), media=media)
    assert hit_of(query, "a", held, BLOCK) == hit * BLOCK
    assert hit_of(query, "b", held, BLOCK) == held * BLOCK


class Node:
    """One router of several on an index, and what it notes of where it sent prompts."""

    def __init__(self, index: Index, number: int = 0, source: Source = Source.EVENTS, count: int = 3) -> None:
        self.index, self.loads = index, Loads()
        self.follower = index  # writes what the engines' events tell
        instances = [Instance(f"10.0.0.{i}:8000") for i in range(count)]
        self.pool = Pool("pool", PlainRenderer(), instances=instances, source=source, cursor=number)
        self.router = Router(index, self.loads)
        routed = ["pool"] if source is Source.ROUTED else []
        self.recorder = Recorder(index, routed, [] if routed else ["pool"], writer=f"router-{number}")
        self.now = 0.0

    async def send(self, messages: list[Message]) -> Decision:
        """Route a request; the engine then stores the text up to the first medium, as its events tell."""
        self.now += LATER
        ask = Ask(Api.CHAT, json.dumps({"messages": messages}).encode())
        decision = await self.router.pick(self.pool, RouteSettings("pool", options={}), ask, now=self.now)
        events = self.pool.source is Source.EVENTS
        name = decision.choice.instance.name
        noted = decision.query.media.turns if decision.query.media else ()
        for keys in (noted,) if events else (decision.chain, noted):
            self.recorder.note("pool", name, keys)
        if events:
            await self.follower.apply([Change("pool", name, add=decision.chain)])
        decision.ticket.release()
        while noted and (await self.index.match("pool", noted)).get(name) != len(noted):
            await asyncio.sleep(0.01)
        return decision

    async def session(self, image: str, turns: int, text: str = "what is on this page?") -> list[Decision]:
        messages = [SYSTEM, user(text, image)]
        decisions = []
        for turn in range(turns):
            decisions.append(await self.send(messages))
            messages += [reply(f"{image} {turn}: a button. " * 40), user(f"now {turn}", f"{image}-{turn}")]
        return decisions


def user(text: str, image: str) -> Message:
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
    return {"role": "user", "content": [{"type": "text", "text": text}, url]}


def reply(text: str) -> Message:
    return {"role": "assistant", "content": text}


def places(decisions: list[Decision]) -> list[str]:
    return [decision.choice.instance.name for decision in decisions]


def reasons(decisions: list[Decision]) -> list[Reason]:
    return [decision.choice.reason for decision in decisions]


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = Node(MemoryIndex())
    yield made
    await made.recorder.close()


@pytest.fixture
async def routed() -> AsyncIterator[Node]:
    made = Node(MemoryIndex(), source=Source.ROUTED)
    yield made
    await made.recorder.close()


async def test_a_session_with_images_stays(node: Node) -> None:
    """Eight turns on one instance, though all instances hold the system prompt alike."""
    for instance in node.pool.instances:
        await node.index.apply([Change("pool", instance.name, add=(await node.send([SYSTEM])).chain)])
    for image in ("A", "B", "C"):
        decisions = await node.session(image, 8)
        assert len(set(places(decisions))) == 1
        assert reasons(decisions) == [Reason.FIRST_TURN] + [Reason.STICK] * 7
        assert all(one.choice.hit == one.choice.history for one in decisions[1:])


async def test_one_image_of_several_sessions_pins_none_together(node: Node) -> None:
    """The same system prompt and image, another question: first turns spread, and each stays where it went."""
    sessions = [await node.session("A", 3, text=f"question {number}") for number in range(6)]
    first = [places(decisions)[0] for decisions in sessions]
    assert sorted(map(first.count, set(first))) == [2, 2, 2]
    assert all(len(set(places(decisions))) == 1 for decisions in sessions)


async def test_a_session_leaves_an_instance_that_lost_its_text(node: Node) -> None:
    """What was sent there says nothing more as soon as the text before the image is gone."""
    messages = [SYSTEM, user("go", "A")]
    first = await node.send(messages)
    await node.index.apply([Change("pool", first.choice.instance.name, remove=first.chain[::-1])])
    again = await node.send([*messages, reply("done"), user("more", "B")])
    assert (again.choice.reason, again.choice.hit) == (Reason.EVICTED, 0)
    last = await node.send([*messages, reply("done"), user("more", "B"), reply("x"), user("y", "C")])
    assert (last.choice.instance, last.choice.reason) == (again.choice.instance, Reason.STICK)


async def test_a_forgotten_instance_has_nothing_of_what_was_sent(node: Node) -> None:
    """After a restart or a clear the text before the image may soon be back, for another session: not the rest."""
    messages = [SYSTEM, user("go", "A")]
    first = await node.send(messages)
    name = first.choice.instance.name
    await node.index.apply([Change("pool", name, forget=True)])
    await node.index.apply([Change("pool", name, add=first.chain)])
    again = await node.send([*messages, reply("done " * 400), user("more", "B")])
    assert again.choice.hit <= len(first.chain) * BLOCK
    last = await node.send([*messages, reply("done " * 400), user("more", "B"), reply("x"), user("y", "C")])
    assert (last.choice.instance, last.choice.reason) == (again.choice.instance, Reason.STICK)


async def test_an_overloaded_instance_is_left(node: Node) -> None:
    """As with any session."""
    messages = [SYSTEM, user("go", "A")]
    first = await node.send(messages)
    busy = [node.loads.start("pool", first.choice.instance.name, 0) for _ in range(4)]
    again = await node.send([*messages, reply("done"), user("more", "B")])
    assert again.choice.reason is Reason.OVERLOADED
    assert again.choice.instance != first.choice.instance
    for ticket in busy:
        ticket.release()


async def test_a_prompt_that_begins_with_an_image(node: Node) -> None:
    """Nothing stands before it that events could tell of: what was sent decides alone."""
    image = {"role": "user", "content": [user("", "A")["content"][1], {"type": "text", "text": "what is it?"}]}
    first = await node.send([image])
    await node.send([user("noise", "N")])
    again = await node.send([image, reply("a page"), user("and now?", "B")])
    assert (again.choice.instance, again.choice.reason) == (first.choice.instance, Reason.STICK)


async def test_where_no_events_come_sessions_stay_too(routed: Node) -> None:
    """What was routed where is all that is known, of text and images alike."""
    for image in ("A", "B"):
        decisions = await routed.session(image, 5)
        assert len(set(places(decisions))) == 1


async def test_routers_share_what_was_sent(redis_of_each_version: RedisServer) -> None:
    """A follow-up that reaches another router goes back as well, and what ends ends for all."""
    url = f"{redis_of_each_version.url}?namespace={uuid.uuid4().hex}&budget_ms=5000"
    nodes = [Node(open_index(url), number) for number in range(2)]
    nodes[1].follower = nodes[0].index
    try:
        messages = [SYSTEM, user("go", "A")]
        where = (await nodes[0].send(messages)).choice.instance
        for turn in range(6):
            messages += [reply(f"step {turn}. " * 30), user(f"now {turn}", f"B{turn}")]
            decision = await nodes[(turn + 1) % 2].send(messages)
            assert (decision.choice.instance, decision.choice.reason) == (where, Reason.STICK)
        await nodes[0].index.apply([Change("pool", where.name, forget=True)])
        messages += [reply("step"), user("now", "C")]
        assert (await nodes[1].send(messages)).choice.reason is Reason.EVICTED
    finally:
        for node in nodes:
            await node.recorder.close()
            await node.index.close()
