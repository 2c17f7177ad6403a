"""The admin port over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
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


async def test_an_address_for_each() -> None:
    """What stands at one is not found at the other."""
    admin = Admin(state, explain)
    ports = [await admin.start("127.0.0.1", 0, debug=False), await admin.start("127.0.0.1", 0, metrics=False)]
    found = []
    async with ClientSession() as http:
        for port in ports:
            for method, path in (("GET", "/metrics"), ("GET", "/debug/state"), ("POST", "/debug/explain")):
                async with http.request(method, f"http://127.0.0.1:{port}{path}") as answer:
                    found.append(answer.status)
    await admin.close()
    assert found == [200, 404, 404, 404, 200, 200]


SHOWN = [
    (None, 401),
    ("Bearer wrong", 401),
    ("new", 401),
    ("Bearer new", 200),
    ("Bearer old", 200),
    ("Bearer n\xe9", 401),
]


@pytest.mark.parametrize(("shown", "status"), SHOWN)
async def test_a_token_for_debug(shown: str | None, status: int) -> None:
    """Several are good, so that one can replace another. Metrics want none, and nothing is computed for a stranger."""
    asked = []

    async def counted() -> Mapping[str, Any]:
        asked.append(shown)
        return STATE

    headers = {"Authorization": shown} if shown else {}
    async with served(Admin(counted, explain, tokens=("new", "old"))) as http:
        async with http.get("/debug/state", headers=headers) as answer:
            assert answer.status == status
            assert (answer.headers.get("WWW-Authenticate") == "Bearer") is (status == 401)
        assert len(asked) == (status == 200)
        async with http.post("/debug/explain", data=b"x" * 100_000, headers=headers) as answer:
            assert answer.status == status
        async with http.get("/metrics") as answer:
            assert answer.status == 200
