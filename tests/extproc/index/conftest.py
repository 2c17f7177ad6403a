"""Every backend of the index, behind one fixture: a new backend adds one line to BACKENDS."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from extproc.index import Index
from extproc.index.open import open_index
from tests.support.redis_server import BINARIES, redis_cluster, redis_server

BACKENDS = ["memory", *BINARIES, "redis-cluster"]


@pytest.fixture(scope="session", params=BACKENDS)
def backend_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a backend that runs."""
    if request.param == "memory":
        yield "memory://"
    elif request.param == "redis-cluster":
        with redis_cluster(tmp_path_factory.mktemp("cluster")) as url:
            yield url
    else:
        with redis_server(BINARIES[request.param]) as server:
            yield server.url


@pytest.fixture
def open_empty(backend_url: str) -> Callable[[], Index]:
    """Opens the backend with nothing in it; the caller closes it."""

    def open_() -> Index:
        separator = "&" if "?" in backend_url else "?"
        # The budget is for production: the machine that runs the tests may be busy with others.
        return open_index(f"{backend_url}{separator}namespace={uuid.uuid4().hex}&budget_ms=5000")

    return open_
