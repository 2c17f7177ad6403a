"""media.py: a session with images stays where it was sent, until the instance's own word ends that."""

from __future__ import annotations

import asyncio
import json
import shutil
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from extproc.base.media import MEDIUM_BYTES
from extproc.base.model import Instance, Reason, Source
from extproc.index import GUESSES, Change, Index
from extproc.index.memory import MemoryIndex
from extproc.index.open import open_index
from extproc.index.routed_writer import Recorder
from extproc.kv_events.engines import vllm
from extproc.kv_events.feed import Feed
from extproc.kv_events.mirror import Mirror
from extproc.prompts.renderer import PlainRenderer, Renderer
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from extproc.requests.paths import Api
from extproc.routing.media import hit, learn
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask, Media, Query
from extproc.routing.route_settings import RouteSettings
from extproc.routing.router import Decision, Router
from loadgen.engine.options import MODEL_DIR
from tests.support import kv_recordings
from tests.support.kv_recordings import message
from tests.support.paths import FIXTURES
from tests.support.redis_server import RedisServer

Message = dict[str, Any]

SYSTEM = {"role": "system", "content": "You drive a browser and are careful. " * 100}
BLOCK = 256
LATER = 60.0  # seconds: no hint of a decision lives so long


def query(*, media: Media, **more: Any) -> Query:
    return Query(turn=2, history=140 * BLOCK, prompt=150 * BLOCK, chain=range(150), media=media, **more)


@pytest.mark.parametrize(
    ("held", "asked", "blind", "followed"),
    [
        (150, 2, 150, 150),  # events tell of all of it
        (145, 2, 145, 145),
        (100, 0, 100, 100),  # up to the image, and it was asked for nothing
        (122, 0, 100, 100),  # the same text with another image ...
        (123, 0, 123, 123),  # ... which cannot have got the same reply
        (100, 1, 130, 100),  # events end at the image: where they were never seen to go past one, what was sent counts
        (100, 2, 140, 100),
        (80, 2, 140, 80),  # an engine's block cuts off the end of the text before it
        (108, 2, 140, 108),
        (74, 2, 74, 74),  # too much of that text is gone
        (115, 2, 115, 115),  # gone in the middle of a text: events can be followed there
        (0, 2, 0, 0),
    ],
)
def test_what_was_sent_counts_where_events_cannot_tell(held: int, asked: int, blind: int, followed: int) -> None:
    """In blocks: an image at 100, stood in for by 8, and two replies from 120 to 130 and up to 140."""
    pool = Pool("pool", PlainRenderer())
    places = [(100 * BLOCK + 3, "user image")]
    media = Media(100, places, turns=[1, 2, 3], ends=[130 * BLOCK, 140 * BLOCK], begin=120 * BLOCK, sent={"a": asked})
    assert hit(pool, query(media=media), "a", held) == blind * BLOCK
    learn(pool, query(media=media), {"b": 111})
    assert hit(pool, query(media=media), "a", held) == followed * BLOCK


def test_events_are_followed_kind_by_kind() -> None:
    """That they go past an image says nothing of videos; and going up to one says nothing."""
    pool = Pool("pool", PlainRenderer())
    places = [(10 * BLOCK, "user image"), (50 * BLOCK, "user video")]
    media = Media(10, places, turns=[1, 2], ends=[140 * BLOCK], begin=0, sent={"a": 1})
    for reached, kinds in ((10, set()), (18, set()), (20, {"user image"}), (58, {"user image"})):
        learn(pool, query(media=media), {"a": reached})
        assert pool.followed == kinds
    assert [hit(pool, query(media=media), "a", held) // BLOCK for held in (10, 30, 49, 58, 59, 60, 80)] == [
        10, 30, 140, 140, 140, 60, 80,
    ]  # fmt: skip
    learn(pool, query(media=media), {"a": 60})
    assert pool.followed == {"user image", "user video"}


class Node:
    """One router of several on an index, and what it notes of where it sent prompts."""

    def __init__(
        self, index: Index, number: int = 0, source: Source = Source.EVENTS, *, follows: bool = False, count: int = 3
    ) -> None:
        """Whether the pool's events can be followed past an image."""
        self.follows = follows
        self.index, self.loads = index, Loads()
        self.follower = index  # writes what the engines' events tell
        instances = [Instance(f"10.0.0.{i}:8000") for i in range(count)]
        self.pool = Pool("pool", PlainRenderer(), instances=instances, source=source, cursor=number)
        self.router = Router(index, self.loads)
        routed = ["pool"] if source is Source.ROUTED else []
        self.recorder = Recorder(index, routed, [] if routed else ["pool"], writer=f"router-{number}")
        self.now = 0.0

    async def send(self, messages: list[Message]) -> Decision:
        """Route a request; the engine then stores its prompt, and its events tell as much of it as can be followed."""
        self.now += LATER
        ask = Ask(Api.CHAT, json.dumps({"messages": messages}).encode())
        decision = await self.router.pick(self.pool, RouteSettings("pool", options={}), ask, now=self.now)
        events = self.pool.source is Source.EVENTS
        name = decision.choice.instance.name
        noted = decision.query.media.turns if decision.query.media else ()
        for keys in (noted,) if events else (decision.chain, noted):
            self.recorder.note("pool", name, keys)
        if events:
            plain = decision.query.media.plain if decision.query.media and not self.follows else None
            await self.follower.apply([Change("pool", name, add=decision.chain[:plain])])
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


@pytest.fixture(params=["blind", "followed"])
async def node(request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    """Where events cannot be followed past an image, and where they can."""
    made = Node(MemoryIndex(), follows=request.param == "followed")
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
        assert all(0.8 * one.choice.history < one.choice.hit <= one.choice.history for one in decisions[1:])


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


async def test_a_session_leaves_an_instance_that_lost_what_follows_its_image() -> None:
    """Where events can be followed, they tell that too: the system prompt that others use is still there."""
    node = Node(MemoryIndex(), follows=True)
    messages = [SYSTEM, user("go", "A"), reply("done " * 400), user("more", "B")]
    await node.session("other", 3)  # by then events were seen to go past an image
    first = await node.send(messages)
    assert first.query.media is not None
    gone = first.chain[first.query.media.plain :]
    await node.index.apply([Change("pool", first.choice.instance.name, remove=gone[::-1])])
    again = await node.send([*messages, reply("x"), user("y", "C")])
    assert again.choice.reason is Reason.EVICTED
    assert again.choice.best_hit <= first.query.media.plain * BLOCK
    await node.recorder.close()


async def test_a_forgotten_instance_has_nothing_of_what_was_sent(node: Node) -> None:
    """After a restart or a clear the text before the image may soon be back, for another session: not the rest."""
    messages = [SYSTEM, user("go", "A")]
    first = await node.send(messages)
    assert first.query.media is not None
    name, head = first.choice.instance.name, first.chain[: first.query.media.plain]
    await node.index.apply([Change("pool", name, forget=True)])
    await node.index.apply([Change("pool", name, add=head)])
    again = await node.send([*messages, reply("done " * 400), user("more", "B")])
    assert again.choice.hit <= len(head) * BLOCK
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


# --- against a real engine

RECORDING = FIXTURES / "images-0.32.0.jsonl.gz"  # a tiny LLaVA
EYE = "<|image_pad|>"
EYES = 16  # tokens of each image
NAME = "10.0.0.0:8000"
TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}\
{% endfor %}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""


class Engine:
    """The recorded engine: its events in an index behind a router, and what its `cached_tokens` stand for."""

    def __init__(self, directory: Path) -> None:
        for file in MODEL_DIR.iterdir():
            shutil.copy(file, directory)
        config = json.loads((directory / "tokenizer_config.json").read_text("utf-8"))
        config.pop("chat_template", None)
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
        (directory / "chat_template.jinja").write_text(TEMPLATE)
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        words = Vocabulary.load(directory)
        self._feed = Feed(vllm.decode, Mirror("pool", words, loose=words), rank=None, can_replay=False)
        self._feed.connected(0)
        self.index = MemoryIndex()
        self.pool = Pool("pool", Renderer.load(directory), instances=[Instance(NAME)])
        self.router = Router(self.index, Loads())

    async def hear(self, line: Message) -> None:
        """A published batch."""
        self._feed.heard(message(line), 0)
        await self.tell()

    async def tell(self) -> None:
        """Bring the index up to date."""
        while self._feed.step(0):
            pass
        assert not self._feed.troubles
        delta = self._feed.drain()
        await self.index.apply([Change("pool", NAME, delta.forget, delta.remove, delta.add)])

    async def predict(self, body: Message, now: float) -> Decision:
        """The decision on a request; it is then known to have been sent."""
        ask = Ask(Api.CHAT, json.dumps(body).encode())
        decision = await self.router.pick(self.pool, RouteSettings("pool", options={}), ask, now=now)
        decision.ticket.release()
        if decision.query.media is not None:
            await self.index.apply([Change("pool", NAME, add=decision.query.media.turns, writer=f"{GUESSES}me")])
        return decision

    def tokens(self, body: Message) -> list[int]:
        """The prompt as the engine sees it."""
        shown = f"<|vision_start|>{EYE}<|vision_end|>"
        text = ""
        for each in body["messages"]:
            content = each["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            said = "".join(shown if part["type"] == "image_url" else part["text"] for part in parts)
            text += f"<|im_start|>{each['role']}\n{said}<|im_end|>\n"
        ids = self._tokenizer.encode(f"{text}<|im_start|>assistant\n", add_special_tokens=False).ids
        eye = self._tokenizer.token_to_id(EYE)
        return [token for one in ids for token in [one] * (EYES if one == eye else 1)]

    def loosely(self, tokens: list[int]) -> int:
        """How many bytes these leading tokens of a prompt have in the form of `base/media.py`."""
        eye = self._tokenizer.token_to_id(EYE)
        first = tokens.index(eye) if eye in tokens else len(tokens)
        head = self._tokenizer.decode(tokens[:first], skip_special_tokens=False)
        if first < len(tokens):
            head = head.removesuffix("<|vision_start|>").rstrip()
        images = sum(one == eye and (n == 0 or tokens[n - 1] != eye) for n, one in enumerate(tokens))
        rest = "".join(self._tokenizer.decode(tokens[first:], skip_special_tokens=True).split())
        return len(head.encode()) + images * MEDIUM_BYTES + len(rest.encode())


async def test_hits_with_images_are_a_real_engines_own(tmp_path: Path) -> None:
    """Sessions of a vision model as vLLM 0.32 served them: several images, one after the other and side by side, at the
    very front, the same in several sessions, another behind the same words. Predictions are the engine's truth."""
    engine, seen = Engine(tmp_path), 0
    await engine.tell()
    for at, line in enumerate(kv_recordings.read(RECORDING)):
        if line["kind"] == "event":
            await engine.hear(line)
        elif line["kind"] == "request":
            tokens, usage = engine.tokens(line["body"]), line["response_usage"]
            assert len(tokens) == usage["prompt_tokens"]
            if line["note"] == "after a reset":  # the engine tells of a clear with its next step
                continue
            decision = await engine.predict(line["body"], at * LATER)
            truth = engine.loosely(tokens[: usage["prompt_tokens_details"]["cached_tokens"]])
            name = f"{line['session']} {line['turn']} {line['note']}"
            assert decision.choice.hit <= truth + BLOCK, name
            if line["turn"]:  # of a first turn nobody knows whether its image is the one behind the same words
                assert truth - BLOCK < decision.choice.hit, name
            seen += 1
    assert seen == 26
    assert engine.pool.followed == {"user image"}
