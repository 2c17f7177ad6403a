"""The admin port over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientSession

from extproc.admin.http import Admin
from extproc.base.errors import ConfigError

STATE = {"pools": {}, "streams": 3}


async def state() -> Mapping[str, Any]:
    return STATE


async def explain(about: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
    if "wrong" in about:
        raise ConfigError("no such pool")
    return {"about": dict(about), "bytes": len(body)}


@asynccontextmanager
async def served(admin: Admin) -> AsyncIterator[ClientSession]:
    port = await admin.start("127.0.0.1", 0)
    try:
        async with ClientSession(f"http://127.0.0.1:{port}") as http:
            yield http
    finally:
        await admin.close()


async def test_metrics_and_state() -> None:
    """In Prometheus's format, and as JSON."""
    async with served(Admin(state)) as http:
        async with http.get("/metrics") as answer:
            assert "smetric_streams" in await answer.text()
            assert answer.content_type == "text/plain"
        async with http.get("/debug/state") as answer:
            assert await answer.json() == STATE


async def test_explain_where_it_is_served() -> None:
    """It gets query and body; a mistake of who asks is 400 and not 500."""
    async with served(Admin(state, explain)) as http:
        async with http.post("/debug/explain?path=/x", data=b"12345") as answer:
            assert await answer.json() == {"about": {"path": "/x"}, "bytes": 5}
        async with http.post("/debug/explain?wrong=1") as answer:
            assert (answer.status, await answer.json()) == (400, {"error": "no such pool"})
    async with served(Admin(state)) as http, http.post("/debug/explain") as answer:
        assert answer.status == 404
