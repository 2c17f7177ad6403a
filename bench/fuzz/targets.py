"""What reads what others wrote, and what it promises: each target takes any bytes and raises only where it breaks it.

An input of several parts (a body and its path, frames, messages of a stream) is cut at a separator, so that one change
may move what belongs to which part.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from redis.asyncio import Redis

from extproc import config
from extproc.base.errors import ConfigError, UnknownToken
from extproc.base.model import Reason
from extproc.config.nodes import Malformed
from extproc.index import redis as redis_index
from extproc.index.redis_names import Directory
from extproc.kv_events.engines import UnusableEvents, sglang, vllm
from extproc.kv_events.feed import Feed
from extproc.kv_events.mirror import Mirror
from extproc.processor import wire
from extproc.processor.exchange import Exchange, ProtocolViolation
from extproc.processor.messages import Continue, Decide, Extend, Immediate, Mutation, Streamed
from extproc.processor.routes import Routes
from extproc.prompts.renderer import PlainRenderer, Renderer
from extproc.requests import apis
from extproc.routing import query
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask
from extproc.shared_state import redis_url
from extproc.shared_state.fact_exchange import FactListener
from extproc.shared_state.load_exchange import LoadExchange
from loadgen.engine.options import MODEL_DIR

CUT = b"\n--\n"  # between the parts of an input

Try = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Target:
    """`make` is called once in each process. `slow_s`: an input that takes longer is a finding too."""

    name: str
    about: str
    make: Callable[[], Try]
    slow_s: float = 0.1
    share: float = 1.0  # of the inputs that are asked for: reading a YAML takes a thousand times as long as a message


def _bodies(renderer: Callable[[], Any]) -> Callable[[], Try]:
    def make() -> Try:
        pool = Pool("pool", renderer())

        def attempt(data: bytes) -> None:
            path, _, body = data.partition(CUT)
            made = query.read(pool, {}, Ask(path.decode("latin-1"), body))
            assert made.degraded is None or made.degraded in Reason
            assert 0 <= made.history <= made.prompt
            apis.model_of(body)

        return attempt

    return make


class _Vocabulary:
    """Every token is its own number in hexadecimal, up to a limit."""

    def decode(self, token_ids: Any) -> bytes:
        for one in token_ids:
            if not 0 <= one < 1_000:
                raise UnknownToken(one)
        return b"".join(b"%x" % one for one in token_ids)


def _payloads() -> Try:
    decodes = (vllm.decode, sglang.decode)

    def attempt(data: bytes) -> None:
        for decode in decodes:
            try:
                for _ in decode(data).events:
                    pass
            except UnusableEvents:
                continue

    return attempt


def _frames() -> Try:
    def attempt(data: bytes) -> None:
        feed = Feed(vllm.decode, Mirror("pool", _Vocabulary(), 8), rank=None, can_replay=True)
        feed.connected(0.0)
        for number, part in enumerate(data.split(CUT)[:20]):
            kind, rest = part[:1], part[1:]
            if kind == b"R":
                feed.replayed([b"", rest[:8], rest[8:]], float(number))
            elif kind == b"D":
                feed.disconnected(float(number))
                feed.connected(float(number))
            elif kind == b"T":
                feed.tick(number * 100.0)
            elif kind == b"F":
                feed.heard(rest.split(b"|"), float(number))
            else:
                feed.heard([b"", rest[:8], rest[8:]], float(number))
            for _ in range(10_000):
                if not feed.step(0.0):
                    break
            feed.drain()
        keys, _ = feed.everything()
        assert len(set(keys)) == len(keys)

    return attempt


def _yaml() -> Try:
    path = Path(tempfile.mkdtemp(prefix="smetric-fuzz-")) / "envoy.yaml"

    def attempt(data: bytes) -> None:
        path.write_bytes(data)
        config.inspect(path).render()

    return attempt


def _eds() -> Try:
    path = Path(tempfile.mkdtemp(prefix="smetric-fuzz-")) / "eds.yaml"

    def attempt(data: bytes) -> None:
        path.write_bytes(data)
        problems: list[config.Problem] = []
        try:
            for endpoint in config.eds_endpoints(path, "engines", problems):
                config.instances(endpoint, "10.0.0.1")
        except Malformed:
            return
        for problem in problems:
            problem.render()

    return attempt


def _messages() -> Try:
    """Loads and facts that come over Redis's channels."""
    loads, pool = Loads(), Pool("engines", PlainRenderer())
    nowhere = Redis(port=1)  # never asked
    exchange = LoadExchange(nowhere, "me", loads, ("engines",), namespace="fuzz")
    listener = FactListener(nowhere, lambda _, fact: pool.speculation.hear(fact, 0.0), namespace="fuzz")

    def attempt(data: bytes) -> None:
        exchange._hear(data, 0.0)
        listener._take(data)
        if len(exchange._peers) > 100:
            for name in list(exchange._peers):
                del exchange._peers[name]
                loads.drop(name)

    return attempt


def _stored() -> Try:
    """What Redis answers of our keys, when others wrote into them: what cannot be read is left out."""

    def attempt(data: bytes) -> None:
        parts = data.split(CUT)
        directory = Directory()
        state = parts[: len(parts) // 2 * 2]
        holders = [value for number, one in enumerate(parts) for value in (one, b"%d" % number)]
        answer: list[Any] = [b"epoch", len(parts), holders, state]
        for number, one in enumerate(parts):
            answer += (number, one)
        directory.read(answer)
        directory.learn_adapters(redis_index.named(b"a:", state))
        redis_index.held_in(state)
        redis_index.reports_in(0, state)

    return attempt


def _urls() -> Try:
    def attempt(data: bytes) -> None:
        text = data.decode("latin-1")
        said = redis_url.without_secrets(text)
        try:
            redis_url.parse(text)
        except ConfigError as error:
            said += str(error)
        assert "s3cret" not in said or "@" not in text.rpartition("s3cret")[2], "the password is shown"

    return attempt


def _metadata() -> Try:
    routes = Routes(None)

    def attempt(data: bytes) -> None:
        pairs = [part.partition(b"=") for part in data.split(b"\n")]
        routes(tuple((key.decode("latin-1"), value.decode("latin-1")) for key, _, value in pairs))

    return attempt


def _streams() -> Try:
    """Messages of one ext_proc stream, each as protobuf."""

    def attempt(data: bytes) -> None:
        exchange, decided = Exchange(), 0
        try:
            for part in data.split(CUT)[:20]:
                try:
                    event = wire.decode(part)
                except (DecodeError, ValueError):
                    continue
                outputs = exchange.receive(event)
                answers = list(outputs)
                if answers and isinstance(answers[-1], Decide):
                    decided += 1
                    answers += exchange.decided(_ROUTING)
                for output in answers:
                    if isinstance(output, Continue | Streamed | Extend | Immediate):
                        wire.encode(output)
        except ProtocolViolation:
            pass
        finally:
            exchange.close()
        assert decided <= 1

    return attempt


_ROUTING = Mutation(set_headers={"x": "1"}, metadata={"envoy.lb": {"x": "1"}})

TARGETS: Mapping[str, Target] = {
    one.name: one
    for one in (
        Target("bodies", "requests of all APIs, rendered as they come", _bodies(PlainRenderer)),
        Target(
            "prompts", "the same by a model's own template and tokenizer", _bodies(lambda: Renderer.load(MODEL_DIR))
        ),
        Target("payloads", "msgpack of engines", _payloads),
        Target("frames", "ZMQ messages, live and replayed, up to the mirror", _frames),
        Target("messages", "loads and facts from Redis's channels", _messages),
        Target("stored", "what Redis answers of our keys", _stored),
        Target("streams", "protobuf messages of a stream, in any order", _streams),
        Target("metadata", "a stream's gRPC metadata", _metadata),
        Target("urls", "the index's URL", _urls),
        Target("eds", "an EDS file", _eds, 1.0, 0.05),
        Target("yaml", "an Envoy YAML", _yaml, 5.0, 0.001),
    )
}
