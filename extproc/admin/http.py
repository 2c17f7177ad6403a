"""HTTP for operators: `/metrics` for Prometheus, `/debug/state` and `/debug/explain` for people.

Not for the public: bind it locally. On another address `/debug/explain` is served only where an operator asks for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from extproc.base import metrics
from extproc.base.errors import ConfigError

State = Mapping[str, Any]
Explain = Callable[[Mapping[str, str], bytes], Awaitable[State]]

MAX_BODY = 64 * 1024 * 1024  # bytes to explain: what the shipped Envoy configuration lets through


class Admin:
    """Serves the metrics registry and what `state` returns; gauges are brought up to date by the same call.

    `explain`, where it is served, gets the query of the URL and the body of a request; it may raise ConfigError.
    """

    def __init__(self, state: Callable[[], Awaitable[State]], explain: Explain | None = None) -> None:
        self._state = state
        self._explain = explain
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chooses where 0 was asked for. Raises OSError if it is taken."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/debug/state", self._debug_state)
        if self._explain is not None:
            app.router.add_post("/debug/explain", self._debug_explain)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        await self._state()
        return web.Response(body=generate_latest(metrics.REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _debug_state(self, _: web.Request) -> web.Response:
        return _json(await self._state())

    async def _debug_explain(self, request: web.Request) -> web.Response:
        if self._explain is None:
            raise web.HTTPNotFound
        try:
            return _json(await self._explain(request.query, await request.read()))
        except ConfigError as error:
            return _json({"error": str(error)}, status=400)


def _json(value: State, status: int = 200) -> web.Response:
    body = msgspec.json.format(msgspec.json.encode(value), indent=2)
    return web.Response(body=body, status=status, content_type="application/json")
