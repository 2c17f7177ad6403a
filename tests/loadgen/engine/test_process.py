"""A simulated engine as others meet it: a process with HTTP and ZMQ."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import pytest
import zmq
import zmq.asyncio

from loadgen.engine.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Format, Wire
from loadgen.engine.options import MODEL_DIR
from loadgen.engine.tokenizer import Tokens
from loadgen.stack.stack import Engine
from tests.support.paths import ROOT

CHAT = "/v1/chat/completions"
LONG = " ".join(f"word{number}" for number in range(60))
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]
PATIENCE = 60.0  # seconds: a crowded machine is slow, not wrong
Start = Callable[..., Engine]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts engines with the given options; stops them all at the end."""
    started: list[Engine] = []

    def start(*options: str) -> Engine:
        engine = Engine(len(started), tmp_path_factory.mktemp("engine"), options, events=True)
        started.append(engine)
        engine.start()
        engine.wait_ready()
        return engine

    yield start
    for engine in started:
        engine.stop()


@pytest.fixture(scope="module")
def engine(start: Start) -> Engine:
    """One engine with everything by default, a LoRA adapter, and little patience with long contexts."""
    return start("--lora", "adapter", "--max-model-len", "20000", "--time-scale", "0.2")


@pytest.fixture
async def http(engine: Engine) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(engine.url) as session:
        yield session


class Subscriber:
    """Follows an engine's events as a router would, and keeps the truth about its cache."""

    def __init__(self, engine: Engine, style: Format = Format.MAPS) -> None:
        self._engine = engine
        self._wire = Wire(style)
        self._context = zmq.asyncio.Context()
        self.events: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
        self.sequences: list[int] = []
        self.copies: Counter[int | bytes] = Counter()

    async def __aenter__(self) -> Subscriber:
        self._socket = self._context.socket(zmq.SUB)
        self._socket.subscribe(b"")
        connected = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._socket.connect(f"tcp://127.0.0.1:{self._engine.events_port}")
        async with asyncio.timeout(PATIENCE):
            await connected.recv_multipart()
        await asyncio.sleep(0.2)  # the subscription follows the handshake, and nothing tells when it has arrived
        self._socket.disable_monitor()
        connected.close(linger=0)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._context.destroy(linger=0)

    async def read(self, batches: int) -> None:
        """Take in so many batches."""
        for _ in range(batches):
            async with asyncio.timeout(PATIENCE):
                topic, sequence, payload = await self._socket.recv_multipart()
            assert topic == b""
            self.sequences.append(int.from_bytes(sequence, "big"))
            self.apply(payload)

    def apply(self, payload: bytes) -> None:
        """One payload."""
        for event in self._wire.decode(payload).events:
            self.events.append(event)
            match event:
                case BlockStored():
                    self.copies.update(event.block_hashes)
                case BlockRemoved():
                    self.copies.subtract(event.block_hashes)
                case AllBlocksCleared():
                    self.copies.clear()

    async def replay(self, *requests: list[bytes]) -> list[list[bytes]]:
        """All answers to replay requests that one client sends, up to the first end marker, which is included."""
        socket = self._context.socket(zmq.DEALER)
        socket.connect(f"tcp://127.0.0.1:{self._engine.replay_port}")
        for request in requests:
            await socket.send_multipart(request)
        answers: list[list[bytes]] = []
        async with asyncio.timeout(PATIENCE):
            while not answers or Wire.END not in answers[-1]:
                answers.append(await socket.recv_multipart())
        socket.close(linger=0)
        return answers


async def ask(http: aiohttp.ClientSession, content: str | None = None, **body: Any) -> dict[str, Any]:
    """A completion that must succeed."""
    if content is not None:
        body["messages"] = [{"role": "user", "content": content}]
    async with http.post(CHAT, json={"max_tokens": 8, **body}) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
    return answer


async def chunks(response: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    """The chunks of a stream that ends as it should."""
    lines = [line.decode() async for line in response.content if line.strip()]
    assert lines[-1] == "data: [DONE]\n"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def test_a_stream_says_what_the_whole_answer_says(http: aiohttp.ClientSession, engine: Engine) -> None:
    """The same question gives the same words, finish reason and usage, streamed or not, and names the engine."""
    whole = await ask(http, "What is a lease?", max_tokens=20)
    body = {"messages": [{"role": "user", "content": "What is a lease?"}], "max_tokens": 20, "stream": True}
    async with http.post(CHAT, json=body | {"stream_options": {"include_usage": True}}) as response:
        assert response.headers["x-engine"] == engine.address
        parts = await chunks(response)
    first, *_, last, usage = parts
    assert first["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(part["choices"][0]["delta"].get("content", "") for part in parts[:-1])
    assert text == whole["choices"][0]["message"]["content"]
    assert last["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] <= 20


async def test_forced_replies_have_the_length_that_was_asked_for(http: aiohttp.ClientSession) -> None:
    """With ignore_eos a reply is exactly max_tokens long, so that recorded lengths can be replayed."""
    answer = await ask(http, "x", max_tokens=333, ignore_eos=True, tools=TOOLS)
    assert answer["usage"]["completion_tokens"] == 333
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_session_with_tool_calls_stays_in_the_cache(http: aiohttp.ClientSession, stream: bool) -> None:
    """A follow-up that carries the engine's own tool call hits everything that was computed, to the last full block."""
    question = {"role": "user", "content": f"{LONG} {stream}"}
    body = {"messages": [question], "tools": TOOLS, "tool_choice": "required", "max_tokens": 100}
    if stream:
        async with http.post(CHAT, json=body | {"stream": True}) as response:
            parts = await chunks(response)
        calls = [call for part in parts for call in part["choices"][0]["delta"].get("tool_calls", ())]
        assert parts[-1]["choices"][0]["finish_reason"] == "tool_calls"
    else:
        answer = await ask(http, **body)
        calls = answer["choices"][0]["message"]["tool_calls"]
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
    (call,) = calls
    assert isinstance(json.loads(call["function"]["arguments"])["path"], str)
    reply = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "no such file"}
    follow_up = await ask(http, messages=[question, reply, result], tools=TOOLS)
    async with http.post("/tokenize", json={"messages": [question, reply], "tools": TOOLS}) as response:
        known = (await response.json())["count"]
    template_tail = 4  # what /tokenize adds behind the reply: a newline and the opening of the next one
    assert follow_up["usage"]["prompt_tokens_details"]["cached_tokens"] == (known - template_tail - 1) // 16 * 16


async def test_a_chat_is_rendered_for_routers_that_ask(http: aiohttp.ClientSession) -> None:
    """What /v1/chat/completions/render answers are the tokens that the same chat is served with."""
    body = {"messages": [{"role": "user", "content": LONG}], "tools": TOOLS, "max_tokens": 3}
    async with http.post(f"{CHAT}/render", json=body) as response:
        rendered = await response.json()
    async with http.post("/tokenize", json=body) as response:
        assert rendered["token_ids"] == (await response.json())["tokens"]
    assert len(rendered["token_ids"]) == (await ask(http, **body))["usage"]["prompt_tokens"]


async def test_other_caches_are_kept_apart(http: aiohttp.ClientSession) -> None:
    """Equal prompts under another LoRA adapter or another cache_salt share nothing."""
    messages = [{"role": "system", "content": f"apart {LONG}"}, {"role": "user", "content": "hello"}]
    for separate in ({}, {"model": "adapter"}, {"cache_salt": "a"}, {"cache_salt": "b"}):
        first = await ask(http, messages=messages, **separate)
        again = await ask(http, messages=messages, **separate)
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, separate
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, separate


async def test_events_carry_what_is_cached(start: Start) -> None:
    """A subscriber can rebuild prompt and reply from the tokens of the events, and the next hit from their hashes."""
    engine = start("--lora", "adapter")
    tokens = Tokens(MODEL_DIR)
    async with aiohttp.ClientSession(engine.url) as http, Subscriber(engine) as subscriber:
        answer = await ask(http, LONG, model="adapter", cache_salt="tenant", max_tokens=16, ignore_eos=True)
        await subscriber.read(1)
        async with http.post("/tokenize", json={"messages": [{"role": "user", "content": LONG}]}) as response:
            prompt = (await response.json())["tokens"]
        while len(subscriber.copies) < (len(prompt) + 15) // 16:
            await subscriber.read(1)
        stored = [event for event in subscriber.events if isinstance(event, BlockStored)]
        known = [token for event in stored for token in event.token_ids]
        reply = list(tokens.encode(answer["choices"][0]["message"]["content"]))
        assert known == (prompt + reply)[: len(known)]
        assert [event.parent_block_hash for event in stored] == [
            None,
            *(event.block_hashes[-1] for event in stored[:-1]),
        ]
        extras = [extra for event in stored for extra in event.extra_keys or ()]
        assert [list(extra or ()) for extra in extras] == [["adapter", "tenant"]] + [["adapter"]] * (len(extras) - 1)
        assert {(event.lora_name, event.lora_id, event.medium, event.block_size) for event in stored} == {
            ("adapter", 1, "GPU", 16)
        }
        assert subscriber.sequences == list(range(len(subscriber.sequences)))


async def test_events_name_the_images_of_a_block(http: aiohttp.ClientSession, engine: Engine) -> None:
    """Blocks with an image say which, and where it begins; an equal prompt hits behind it, another image does not."""
    async with Subscriber(engine) as subscriber:

        def asked(url: str) -> list[dict[str, Any]]:
            parts = [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {"url": url}}]
            return [{"role": "system", "content": f"images {LONG}"}, {"role": "user", "content": parts}]

        hits = []
        for url in ("data:image/png;base64,AAAA", "data:image/png;base64,AAAA", "data:image/png;base64,BBBB"):
            usage = (await ask(http, messages=asked(url), max_tokens=1))["usage"]
            hits.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert hits[0] < 16
        assert hits[1] > hits[2] + 150
        await subscriber.read(1)
        (stored,) = subscriber.events
        assert isinstance(stored, BlockStored)
        named = [(block, *extra[0]) for block, extra in enumerate(stored.extra_keys or ()) if extra]
        assert len({name for _, name, _ in named}) == 1
        first, _, offset = named[0]
        assert [(block * 16 + start) for block, _, start in named] == [first * 16 + offset] * len(named)


async def test_evictions_and_resets_are_told(start: Start) -> None:
    """With a small cache, what the events leave over is what the engine hits; a reset is told with the next request."""
    engine = start("--blocks", "40")
    async with aiohttp.ClientSession(engine.url) as http, Subscriber(engine) as subscriber:
        for name in "abcd":
            await ask(http, f"{name} {LONG}", max_tokens=1)
            await subscriber.read(1)
        assert any(isinstance(event, BlockRemoved) for event in subscriber.events)
        assert 0 < sum(subscriber.copies.values()) <= 40
        assert engine.reset_cache()
        answer = await ask(http, f"d {LONG}", max_tokens=1)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        await subscriber.read(1)
        assert isinstance(subscriber.events[-2], AllBlocksCleared)


@pytest.mark.parametrize(("style", "hashes"), [(Format.ARRAYS, int), (Format.ARRAYS, bytes), (Format.MAPS, bytes)])
async def test_the_formats_of_other_versions(start: Start, style: Format, hashes: type) -> None:
    """By a switch, events are arrays as up to 0.23, and hashes are bytes; a replay follows the format."""
    options = ["--event-format", style.value, *(["--bytes-hashes"] if hashes is bytes else [])]
    engine = start(*options)
    async with aiohttp.ClientSession(engine.url) as http, Subscriber(engine, style) as subscriber:
        await ask(http, LONG, max_tokens=1)
        await subscriber.read(1)
        assert all(isinstance(key, hashes) for key in subscriber.copies)
        answers = await subscriber.replay([b"", bytes(8)])
        assert [len(frames) for frames in answers] == ([4, 4] if style is Format.MAPS else [3, 3])


async def test_late_subscribers_replay(engine: Engine, http: aiohttp.ClientSession) -> None:
    """A replay from 0 gives every batch in order and then the end marker; from beyond the newest only the marker; a
    request without the delimiter frame is dropped without harm."""
    await ask(http, f"late {LONG}")
    async with Subscriber(engine) as subscriber:
        everything = await subscriber.replay([b"", bytes(8)])
        sequences = [int.from_bytes(frames[2], "big") for frames in everything[:-1]]
        assert sequences == list(range(len(sequences)))
        assert sequences
        for frames in everything[:-1]:
            subscriber.apply(frames[3])
        assert subscriber.copies
        later = [b"", (len(sequences) - 1).to_bytes(8, "big")]
        assert await subscriber.replay(later) == everything[-2:]
        assert await subscriber.replay([b"", (10**6).to_bytes(8, "big")]) == everything[-1:]
        assert await subscriber.replay([bytes(8)], later) == everything[-2:]
        assert await subscriber.replay([b"", b""]) == everything


@pytest.mark.parametrize(
    ("raw", "status", "kind"),
    [
        (b"", 400, "Bad Request"),
        (b"{", 400, "Bad Request"),
        (b"[1]", 400, "Bad Request"),
        (b"[" * 10_000, 400, "Bad Request"),
        (b'{"messages": []}', 400, "Bad Request"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, "Bad Request"),
        (b'{"messages": [{"role": "user", "content": "x"}], "tools": []}', 400, "Bad Request"),
        (b'{"messages": [{"role": "user", "content": "x"}], "cache_salt": ""}', 400, "Bad Request"),
        (b'{"messages": [{"role": "user", "content": "x"}], "stream": "yes"}', 400, "Bad Request"),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}', 400, "BadRequestError"),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 99999}', 400, "BadRequestError"),
        (b'{"messages": [{"role": "user", "content": "%s"}]}' % (b"x " * 30_000), 400, "BadRequestError"),
        (b'{"messages": [{"role": "user", "content": "x"}], "model": "other"}', 404, "NotFoundError"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_served_is_refused(
    http: aiohttp.ClientSession, raw: bytes, status: int, kind: str, stream: bool
) -> None:
    """A bad request gets vLLM's status and error type as an OpenAI-style body, with `stream` as well."""
    if stream and raw.endswith(b"}") and b"stream" not in raw:
        raw = raw[:-1] + b', "stream": true}'
    async with http.post(CHAT, data=raw, headers={"content-type": "application/json"}) as response:
        assert response.status == status
        error = (await response.json())["error"]
    assert (error["type"], error["code"]) == (kind, status)
    assert error["message"]


async def test_errors_of_the_framework(http: aiohttp.ClientSession) -> None:
    """Not UTF-8, compressed bodies, unknown paths and wrong methods get the answers that vLLM's framework gives."""
    json_type = {"content-type": "application/json"}
    async with http.post(CHAT, data=b'{"a": "\xff"}', headers=json_type) as response:
        assert (response.status, "detail" in await response.json()) == (400, True)
    async with http.post(CHAT, data=b"\x1f\x8b\x08", headers=json_type | {"content-encoding": "gzip"}) as response:
        assert response.status == 400
    async with http.post(CHAT, data=b"{}", headers={"content-type": "text/plain"}) as response:
        assert response.status == 400
    async with http.get(CHAT) as response:
        assert (response.status, "detail" in await response.json()) == (405, True)
    async with http.get("/nothing") as response:
        assert (response.status, "detail" in await response.json()) == (404, True)


async def test_the_body_limit_is_64_mb(http: aiohttp.ClientSession) -> None:
    """A body of 63 MB is read and judged; one of 65 MB is refused as too large."""
    for megabytes, status in ((63, 400), (65, 413)):
        body = b'{"messages": 1, "pad": "' + b"x" * (megabytes * 1024 * 1024) + b'"}'
        async with http.post(CHAT, data=io.BytesIO(body), headers={"content-type": "application/json"}) as response:
            assert response.status == status


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_frees_its_request(start: Start, stream: bool) -> None:
    """Aborted requests leave neither a running request nor blocks behind."""
    engine = start("--time-scale", "5")
    body = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 5000, "ignore_eos": True, "stream": stream}
    async with aiohttp.ClientSession(engine.url) as http:
        asks = [asyncio.ensure_future(http.post(CHAT, json=body)) for _ in range(5)]
        await until(lambda: engine.metric("vllm:num_requests_running") == 5)
        assert engine.metric("vllm:kv_cache_usage_perc") > 0
        for one in asks:
            one.cancel()
        for answer in await asyncio.gather(*asks, return_exceptions=True):
            if isinstance(answer, aiohttp.ClientResponse):
                answer.close()
        await until(lambda: engine.metric("vllm:num_requests_running") == 0)
        assert engine.metric("vllm:kv_cache_usage_perc") == 0


async def test_metrics_have_the_names_of_vllm(http: aiohttp.ClientSession, engine: Engine) -> None:
    """A scraper made for vLLM finds what it looks for, and the counters count tokens."""
    queries, hits = (engine.metric(f"vllm:prefix_cache_{name}_total") for name in ("queries", "hits"))
    usages = [(await ask(http, f"metrics {LONG}"))["usage"] for _ in range(2)]
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert cached > 0
    prompts = sum(usage["prompt_tokens"] for usage in usages)
    assert engine.metric("vllm:prefix_cache_queries_total") - queries == prompts
    assert engine.metric("vllm:prefix_cache_hits_total") - hits == cached
    assert engine.metric("vllm:cache_config_info") == 1
    async with http.get("/metrics") as response:
        assert 'vllm:num_requests_waiting{engine="0",model_name="tiny"}' in await response.text()


async def test_models_are_listed(http: aiohttp.ClientSession) -> None:
    """/v1/models lists the base model and its adapters, and each of them answers."""
    async with http.get("/v1/models") as response:
        models = (await response.json())["data"]
    assert [(model["id"], model["parent"]) for model in models] == [("tiny", None), ("adapter", "tiny")]
    for model in models:
        assert (await ask(http, "hello", model=model["id"]))["model"] == model["id"]


async def test_sigterm_lets_open_requests_finish(start: Start) -> None:
    """SIGTERM in the middle of a stream: the stream is complete, and the process ends with status 0."""
    engine = start()
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 30, "ignore_eos": True, "stream": True}
    async with aiohttp.ClientSession(engine.url) as http, http.post(CHAT, json=body) as response:
        await response.content.readline()
        stopped = asyncio.create_task(asyncio.to_thread(engine.stop, 20.0))
        parts = await chunks(response)
    assert parts[-1]["choices"][0]["finish_reason"] == "length"
    assert await stopped == 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--blocks", "0"], "--blocks"),
        (["--port", "70000"], "--port"),
        (["--time-scale", "-1"], "--time-scale"),
        (["--kv-replay", "tcp://*:5558"], "--kv-events"),
        (["--kv-events", "nonsense"], "nonsense"),
        (["--model-dir", "/nowhere"], "/nowhere"),
        (["--blocks", "10", "--max-model-len", "1000"], "--max-model-len"),
    ],
)
def test_wrong_options_are_explained(arguments: list[str], word: str) -> None:
    """A wrong option ends the engine at once with status 1 and one line that names it, without a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "loadgen", "engine", "--port", "0", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 1
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_explained(engine: Engine) -> None:
    """Starting a second engine on the same port says so."""
    arguments = [sys.executable, "-m", "loadgen", "engine", "--port", str(engine.port)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "in use" in done.stderr
    with urllib.request.urlopen(f"{engine.url}/health") as response:
        assert response.status == 200


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, or fail."""
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.02)
