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
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import msgspec
from aiohttp import web
from prometheus_client import generate_latest

from loadgen.engine.chat_api import ChatApi, parse
from loadgen.engine.clock import Engine
from loadgen.engine.completion import Completion
from loadgen.engine.errors import Refused, invalid
from loadgen.engine.metrics import EngineMetrics
from loadgen.engine.other_apis import OtherApis
from loadgen.engine.transfer import TransferInstance, Transfers
from loadgen.json_types import Json

log = logging.getLogger(__name__)

MAX_BODY = 64 * 1024 * 1024  # bytes
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """The HTTP handlers of one engine."""

    def __init__(self, api: ChatApi, engine: Engine, instance: TransferInstance) -> None:
        self._api = api
        self._engine = engine
        self._metrics = EngineMetrics(instance, api.served.models[0])
        self._transfers = Transfers(instance, self._metrics.registry)
        self._started = int(time.time())

    def app(self) -> web.Application:
        """The routes, with errors as vLLM shapes them and `x-engine: ip:port` on every answer."""
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_errors])
        app.on_response_prepare.append(_sign)
        app.router.add_post("/v1/chat/completions", self.chat_completions)
        app.router.add_post("/v1/chat/completions/render", self.render)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/reset_prefix_cache", self.reset_prefix_cache)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/v1/models", self.models)
        self._transfers.add_to(app)
        OtherApis(self._api, self._engine, self._transfers).add_to(app)
        return app

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """Answer a chat. An error keeps its status with `stream` too: headers go out when the prompt is accepted."""
        arrived = time.monotonic()
        identity = f"chatcmpl-{uuid.uuid4().hex}"
        body = await _body(request)
        # In a thread: tokenising a long prompt must not hold up everybody's tokens.
        completion = await asyncio.to_thread(self._api.start, body, id=identity, created=int(time.time()))
        async with (
            self._transfers.during(body, completion),
            contextlib.aclosing(self._engine.generate(completion.request)) as progress,
        ):
            if completion.stream:
                response: web.StreamResponse = await self._stream(request, completion, progress, arrived)
            else:
                async for _ in self._watched(progress, arrived):
                    pass
                params = self._transfers.params(request, completion)
                response = _json(completion.message() | ({"kv_transfer_params": params} if params else {}))
        self._metrics.finished("length" if completion.reply.finish == "length" else "stop")
        return response

    async def _stream(
        self, request: web.Request, completion: Completion, progress: AsyncGenerator[int, None], arrived: float
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        before = 0
        async for sampled in self._watched(progress, arrived):
            chunks = [] if before else [completion.opening()]
            if delta := completion.delta(before, sampled):
                chunks.append(delta)
            if sampled == completion.request.reply:
                chunks += completion.closing()
            if chunks:
                await response.write(b"".join(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks))
            before = sampled
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _watched(self, progress: AsyncIterator[int], arrived: float) -> AsyncIterator[int]:
        first = True
        async for sampled in progress:
            if first:
                self._metrics.ttft.observe(time.monotonic() - arrived)
                first = False
            yield sampled

    async def tokenize(self, request: web.Request) -> web.Response:
        """The token ids of a chat or a text: the oracle for whoever renders prompts himself."""
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
        return web.Response(body=error.body(), status=error.status, content_type="application/json")
    except web.HTTPException as error:
        return _json({"detail": error.reason}, error.status)


async def _sign(request: web.Request, response: web.StreamResponse) -> None:
    """Say which engine answered, by the address that the router knows it by."""
    local = request.transport.get_extra_info("sockname") if request.transport else None
    if local:
        host, port = local[:2]
        response.headers["x-engine"] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
