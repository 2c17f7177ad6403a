"""The HTTP side of a simulated vLLM: routes, streams and errors as vLLM's.

Knows neither prompts nor time; a client that hangs up cancels its handler, which aborts its request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime

import msgspec
from aiohttp import web
from prometheus_client import generate_latest

from loadgen.engine import request_log
from loadgen.engine.api_parts import Api, Event, Stream
from loadgen.engine.apis import APIS, CHAT, MESSAGES, RESPONSES, read
from loadgen.engine.chat_api import ChatApi, parse
from loadgen.engine.clock import Engine
from loadgen.engine.errors import Refused, invalid
from loadgen.engine.metrics import EngineMetrics
from loadgen.engine.stored import StoredResponses
from loadgen.engine.transfer import TransferInstance, Transfers
from loadgen.json_types import Json

log = logging.getLogger(__name__)

MAX_BODY = 64 * 1024 * 1024  # bytes
ID_LENGTH = 16  # hex digits of an answer's id
Progress = AsyncIterator[tuple[int, int]]  # place of a sample, its tokens so far
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """The HTTP handlers of one engine."""

    def __init__(
        self,
        api: ChatApi,
        engine: Engine,
        instance: TransferInstance,
        tell: Callable[[str], object] | None = None,
    ) -> None:
        """`tell` takes the lines of a log of requests, where one is wanted."""
        self._api = api
        self._engine = engine
        self._metrics = EngineMetrics(instance, api.served.models[0])
        self._transfers = Transfers(instance, self._metrics.registry)
        self._stored = StoredResponses()
        self._tell = tell
        self._started = int(time.time())

    def app(self) -> web.Application:
        """The routes, with errors as vLLM shapes them and `x-engine: ip:port` on every answer."""
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_errors])
        app.on_response_prepare.append(_sign)
        for path in APIS:
            app.router.add_post(path, self.serve)
        app.router.add_post(f"{CHAT}/render", self.render)
        app.router.add_post(f"{MESSAGES}/count_tokens", self.count_tokens)
        app.router.add_get(RESPONSES + "/{id}", self.stored_response)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/reset_prefix_cache", self.reset_prefix_cache)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/v1/models", self.models)
        self._transfers.add_to(app)
        return app

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer. An error keeps its status with `stream` too: headers go out when the prompt is accepted."""
        arrived = time.monotonic()
        api = APIS[request.path]
        body = await _body(request)
        chat = read(request.path, body)
        if api.stores:
            chat = self._stored.continued(body, chat)
        identity = f"{api.prefix}{uuid.uuid4().hex[:ID_LENGTH]}"
        # In a thread: tokenising a long prompt must not hold up everybody's tokens.
        completion = await asyncio.to_thread(self._api.start, chat, id=identity, created=int(time.time()))
        requests = [sample.request for sample in completion.samples]
        if self._tell:
            for line in request_log.received(completion, self._api.text(completion), datetime.now(UTC)):
                self._tell(line)

        def ended() -> None:
            """Before the client hears of it: it may go on at once from a response that is stored."""
            if api.stores and body.get("store") is not False:
                self._stored.keep(completion, chat, api.answer(completion, body))
            if self._tell:
                self._tell(request_log.generated(completion, datetime.now(UTC)))
            for sample in completion.samples:
                self._metrics.finished("length" if sample.reply.finish == "length" else "stop")

        async with (
            self._transfers.during(body, completion),
            contextlib.aclosing(self._engine.generate(requests)) as progress,
        ):
            watched = self._watched(progress, arrived)
            if completion.stream:
                response: web.StreamResponse = await _streamed(
                    request, api.stream(completion, body), api, watched, ended
                )
            else:
                async for _ in watched:
                    pass
                ended()
                params = self._transfers.params(request, completion)
                response = _json(api.answer(completion, body) | ({"kv_transfer_params": params} if params else {}))
        return response

    async def _watched(self, progress: Progress, arrived: float) -> Progress:
        first = True
        async for one in progress:
            if first:
                self._metrics.ttft.observe(time.monotonic() - arrived)
                first = False
            yield one

    async def count_tokens(self, request: web.Request) -> web.Response:
        """How long the prompt of a message would be."""
        chat = read(MESSAGES, await _body(request))
        count = len(await asyncio.to_thread(self._api.prompt, chat))
        return _json({"input_tokens": count, "context_management": {"original_input_tokens": count}})

    async def stored_response(self, request: web.Request) -> web.Response:
        """A response that was stored."""
        return _json(self._stored.find(request.match_info["id"]))

    async def tokenize(self, request: web.Request) -> web.Response:
        """The token ids of a chat or a text: the oracle for those that render prompts themselves."""
        return _json(await asyncio.to_thread(self._api.tokenize, await _body(request)))

    async def render(self, request: web.Request) -> web.Response:
        """The token ids that a chat would be served with: other routers ask this for each request."""
        return _json(await asyncio.to_thread(self._api.render, await _body(request), id=f"chatcmpl-{uuid.uuid4().hex}"))

    async def reset_prefix_cache(self, _request: web.Request) -> web.Response:
        """Forget the cache, unless requests run."""
        return _json({"success": self._engine.instance.clear()})

    async def health(self, _request: web.Request) -> web.Response:
        """200 as long as the process answers."""
        return web.Response()

    async def metrics(self, _request: web.Request) -> web.Response:
        """Prometheus text."""
        return web.Response(body=generate_latest(self._metrics.registry), headers={"content-type": "text/plain"})

    async def models(self, _request: web.Request) -> web.Response:
        """The base model's names and the adapters."""
        served = self._api.served
        cards = [
            {
                "id": name,
                "object": "model",
                "created": self._started,
                "owned_by": "vllm",
                "root": name,
                "parent": served.models[0] if name in served.adapters else None,
                "max_model_len": served.max_model_len,
            }
            for name in (*served.models, *served.adapters)
        ]
        return _json({"object": "list", "data": cards})


async def _streamed(
    request: web.Request, stream: Stream, api: Api, progress: Progress, ended: Callable[[], None]
) -> web.StreamResponse:
    """Server-sent events, as the tokens come."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    if events := stream.opening():
        await response.write(_events(api, events))
    samples = stream.completion.samples
    told = [0] * len(samples)
    async for place, sampled in progress:
        events = stream.advance(samples[place], told[place], sampled)
        told[place] = sampled
        if events:
            await response.write(_events(api, events))
    ended()
    await response.write(_events(api, stream.closing()) + (b"data: [DONE]\n\n" if api.done else b""))
    await response.write_eof()
    return response


def _events(api: Api, events: Sequence[Event]) -> bytes:
    return b"".join(
        (f"event: {event['type']}\n".encode() if api.named else b"") + b"data: " + msgspec.json.encode(event) + b"\n\n"
        for event in events
    )


async def _body(request: web.Request) -> dict[str, Json]:
    """The JSON object that was posted.

    Raises:
        Refused: 400, another content type or no JSON object.
        web.HTTPException: 400 as FastAPI words it, in no encoding of JSON's; 413, too large.
    """
    if request.content_type not in ("application/json", "application/octet-stream"):  # the latter: none was sent
        raise invalid(f"content-type must be application/json, not {request.content_type}")
    raw = await request.read()
    try:
        raw.decode(json.detect_encoding(raw), "surrogatepass")
    except UnicodeDecodeError:
        raise web.HTTPBadRequest(reason="There was an error parsing the body") from None
    return parse(raw)


def _json(value: Json, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as error:
        body = error.body(anthropic=request.path.startswith(MESSAGES))
        return web.Response(body=body, status=error.status, content_type="application/json")
    except web.HTTPException as error:
        return _json({"detail": error.reason}, error.status)


async def _sign(request: web.Request, response: web.StreamResponse) -> None:
    """Say which engine answered, by the address that the router knows it by."""
    local = request.transport.get_extra_info("sockname") if request.transport else None
    if local:
        host, port = local[:2]
        response.headers["x-engine"] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
