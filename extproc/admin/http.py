"""HTTP for operators: `/metrics` for Prometheus, `/debug/state` and `/debug/explain` for people.

Not for the public: bind it locally. The two may have an address each, and `/debug` may want a token. On an address that
others can reach `/debug/explain` is served only where an operator asks for it.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from extproc.base import metrics
from extproc.base.errors import ConfigError

State = Mapping[str, Any]
Explain = Callable[[Mapping[str, str], bytes], Awaitable[State]]
Page = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_BODY = 64 * 1024 * 1024  # bytes to explain: what the shipped Envoy configuration lets through


class Admin:
    """Serves the metrics registry and what `state` returns; gauges are brought up to date by the same call.

    `explain`, where it is served, gets the query of the URL and the body of a request; it may raise ConfigError.
    With `tokens`, `/debug` wants one of them as `Authorization: Bearer TOKEN`.
    """

    def __init__(
        self, state: Callable[[], Awaitable[State]], explain: Explain | None = None, *, tokens: Sequence[str] = ()
    ) -> None:
        self._state = state
        self._explain = explain
        self._expected = [f"Bearer {token}".encode() for token in tokens]
        self._runners: list[web.AppRunner] = []

    async def start(self, host: str, port: int, *, metrics: bool = True, debug: bool = True) -> int:
        """Listen on one more address, for one of the two or for both; returns the port, which the system chooses where
        0 was asked for. Raises OSError if it is taken."""
        app = web.Application(client_max_size=MAX_BODY)
        if metrics:
            app.router.add_get("/metrics", self._metrics)
        if debug:
            app.router.add_get("/debug/state", self._guarded(self._debug_state))
        if debug and self._explain is not None:
            app.router.add_post("/debug/explain", self._guarded(self._debug_explain))
        runner = web.AppRunner(app, access_log=None)
        self._runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        bound: int = runner.addresses[0][1]
        return bound

    async def close(self) -> None:
        """Stop listening."""
        for runner in self._runners:
            await runner.cleanup()

    def _guarded(self, page: Page) -> Page:
        """The page for those who show a token, where one is wanted; no byte of a body is read of others."""
        if not self._expected:
            return page

        async def guarded(request: web.Request) -> web.StreamResponse:
            shown = request.headers.get("Authorization", "").encode()
            good = [hmac.compare_digest(shown, expected) for expected in self._expected]  # all, to tell nothing by time
            if not any(good):
                raise web.HTTPUnauthorized(headers={"WWW-Authenticate": "Bearer"})
            return await page(request)

        return guarded

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
