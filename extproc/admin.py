"""HTTP for operators: `/metrics` for Prometheus and `/debug/state` for people. Not for the public: bind it locally."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from extproc import metrics

State = Mapping[str, Any]


class Admin:
    """Serves the metrics registry and what `state` returns; gauges are brought up to date by the same call."""

    def __init__(self, state: Callable[[], Awaitable[State]]) -> None:
        self._state = state
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chooses where 0 was asked for. Raises OSError if it is taken."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/debug/state", self._debug_state)
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
        body = msgspec.json.format(msgspec.json.encode(await self._state()), indent=2)
        return web.Response(body=body, content_type="application/json")
