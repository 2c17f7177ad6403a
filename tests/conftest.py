"""Real servers that several test files share; each is started once, when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.redis_server import BINARIES, RedisServer, redis_server


@pytest.fixture(scope="session", params=BINARIES)
def redis_of_each_version(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """Every Redis that this machine has, one after the other. Shared: take a namespace of your own, stop nothing."""
    with redis_server(BINARIES[request.param]) as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis for one test alone, which may stop, pause and empty it."""
    with redis_server() as server:
        yield server
