"""A routing sidecar as llm-d puts beside a decode engine: HTTP in, HTTP to the engine next to it.

A request with `x-prefiller-host-port` is prefilled there first, and reaches the engine with the `kv_transfer_params` of
that answer; every other request passes. Where the prefill fails, the engine prefills the request itself.

What it makes of a body, `extproc/routing/disaggregation/bodies.py` makes too. They are two readings of one protocol on
purpose: this one stands for somebody else's sidecar. Shared code would agree with itself whatever the protocol says.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

from loadgen.json_types import Json

PREFILLER = "x-prefiller-host-port"
MAX_BODY = 64 * 1024 * 1024  # bytes
EXPORT: dict[str, Json] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_OWN = frozenset({"host", "content-length", "transfer-encoding", "connection", PREFILLER})
_HOPS = frozenset({"content-length", "transfer-encoding", "connection"})


def app(engine: str) -> web.Application:
    """The sidecar of the engine at `engine` ("host:port")."""
    made = web.Application(client_max_size=MAX_BODY)
    made[_ENGINE] = engine
    made.cleanup_ctx.append(_session)
    made.router.add_route("*", "/{path:.*}", _forward)
    return made


_ENGINE = web.AppKey("engine", str)
_SESSION = web.AppKey("session", aiohttp.ClientSession)


async def _session(made: web.Application) -> AsyncIterator[None]:
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as made[_SESSION]:
        yield


async def _forward(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    headers = {name: value for name, value in request.headers.items() if name.lower() not in _OWN}
    prefiller = request.headers.get(PREFILLER)
    if prefiller:
        body = await _prefilled(request, prefiller, headers, body)
    url = f"http://{request.app[_ENGINE]}{request.rel_url}"
    async with request.app[_SESSION].request(request.method, url, data=body, headers=headers) as answer:
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOPS}
        response = web.StreamResponse(status=answer.status, headers=kept)
        await response.prepare(request)
        async for piece in answer.content.iter_any():
            await response.write(piece)
        await response.write_eof()
        return response


async def _prefilled(request: web.Request, prefiller: str, headers: dict[str, str], body: bytes) -> bytes:
    """The body for the engine: with the params of the prefill, or as it came where that failed."""
    try:
        asked = json.loads(body)
        prefill = {name: value for name, value in asked.items() if name not in ("stream_options", "min_tokens")}
        prefill |= {"max_tokens": 1, "stream": False, "kv_transfer_params": EXPORT}
        if "max_completion_tokens" in asked:
            prefill["max_completion_tokens"] = 1
        url = f"http://{prefiller}{request.rel_url}"
        async with request.app[_SESSION].post(url, json=prefill, headers=headers) as answer:
            params = (await answer.json())["kv_transfer_params"]
    except (aiohttp.ClientError, OSError, ValueError, LookupError, AttributeError):
        return body
    return json.dumps(asked | {"kv_transfer_params": params}).encode()
