"""An engine's HTTP, as engines of other makes and with other settings answer."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from extproc.cli.check_live import engines
from extproc.cli.check_live.engines import Served
from extproc.cli.check_live.findings import Outcome
from extproc.config import Discovery, HealthCheck, PoolSettings
from extproc.processor import tls
from tests.support.envoy_yaml import MODEL

POOL = PoolSettings("pool", Discovery.STATIC, ())
CHECK = HealthCheck("/ready", "engine", 1.0, 1.0, 1, 1, (range(200, 300),))
MODELS = {"data": [{"id": "tiny", "object": "model"}, {"id": "sql", "parent": "tiny"}]}
NOT_FOUND = web.HTTPNotFound


@asynccontextmanager
async def engine(*, security: ssl.SSLContext | None = None, **answers: object) -> AsyncIterator[str]:
    """The address of an engine that answers so: JSON, text, or a status."""

    async def answer(request: web.Request) -> web.Response:
        said = answers.get(request.path.rpartition("/")[2], 404)
        if isinstance(said, int):
            return web.Response(status=said)
        return web.Response(text=said) if isinstance(said, str) else web.json_response(said)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=security).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def ask(address: str, pool: PoolSettings = POOL, *, files: bool = False) -> Served:
    async with ClientSession() as http:
        return await engines.engine(http, pool, address, engines.Model(MODEL) if files else None)


def said(served: Served, outcome: Outcome) -> Sequence[str]:
    return [finding.said for finding in served.findings if finding.outcome is outcome]


async def test_an_engine_that_is_well() -> None:
    """Its adapters are not its models."""
    async with engine(health="", models=MODELS) as address:
        served = await ask(address)
    assert said(served, Outcome.OK) == ["answers GET /health with 200", "serves tiny"]
    assert served.models == {"tiny"}


async def test_the_pools_own_health_check_is_asked() -> None:
    """Its path, and the statuses that it takes for healthy."""
    async with engine(health=503, ready=204, models=MODELS) as address:
        assert "answers GET /ready with 204" in said(await ask(address, replace(POOL, health_check=CHECK)), Outcome.OK)
        assert said(await ask(address), Outcome.FAILED) == ["answers GET /health with 503"]


@pytest.mark.parametrize("models", [401, 404, "no JSON", {"data": []}, {"object": "list"}, [1]])
async def test_an_engine_that_does_not_name_its_models(models: object) -> None:
    """That is no mistake: a key, another make."""
    async with engine(health=404, models=models) as address:
        served = await ask(address, files=True)
    assert not said(served, Outcome.FAILED)
    assert len(said(served, Outcome.UNKNOWN)) == 1
    assert served.models == frozenset()


@pytest.mark.parametrize("tokenize", [404, 401, "no JSON", {"count": 5}])
async def test_an_engine_without_tokenize(tokenize: object) -> None:
    """There is nothing to compare with."""
    async with engine(health="", models=MODELS, tokenize=tokenize) as address:
        served = await ask(address, files=True)
    assert [told for told in said(served, Outcome.UNKNOWN) if "/tokenize" in told]
    assert not said(served, Outcome.FAILED)


@pytest.mark.parametrize(("tokens", "told"), [([10**9], "cannot be compared"), ([1, 2, 3], "another prompt"), ([], "")])
async def test_tokens_of_another_model(tokens: list[int], told: str) -> None:
    """Unknown ones, and such that come to another text."""
    async with engine(health="", models=MODELS, tokenize={"tokens": tokens}) as address:
        (failure,) = said(await ask(address, files=True), Outcome.FAILED)
    assert told in failure


async def test_an_engine_behind_tls(tmp_path: Path) -> None:
    """It is asked as Envoy would ask it; without TLS in the cluster that fails."""
    pair = tls.make_self_signed()
    (tmp_path / "pem").write_bytes(pair.certificate + pair.key)
    security = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    security.load_cert_chain(tmp_path / "pem")
    async with engine(security=security, health="", models=MODELS) as address:
        assert said(await ask(address, replace(POOL, tls=True)), Outcome.OK)
        assert said(await ask(address), Outcome.FAILED)


def test_strangers_are_the_fewer() -> None:
    """Where most engines of a pool agree; of two that differ nobody knows which is wrong."""
    tiny, both, other = (frozenset(names.split()) for names in ("tiny", "tiny alias", "other"))

    def told(*models: frozenset[str]) -> Sequence[str]:
        return [finding.what for finding in engines.strangers([Served(str(n), m, ()) for n, m in enumerate(models)])]

    assert told(tiny, other, tiny) == ["1"]
    assert told(tiny, both, tiny) == []
    assert told(tiny, frozenset(), tiny) == []
    assert told(tiny, other) == []
    assert told() == []


def test_model_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Each is named, with its directory."""
    files, finding = engines.model(replace(POOL, model_dir=tmp_path))
    assert files is None
    assert finding is not None
    assert finding.outcome is Outcome.FAILED
    assert engines.model(POOL) == (None, None)
