"""A Redis that takes all, in each version, and what one says that refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.base.errors import ConfigError
from extproc.cli.check_live.findings import Outcome
from extproc.cli.check_live.shared_index import shared_index
from extproc.shared_state.refusals import RIGHTS
from tests.support.redis_server import RedisServer, redis_cluster


async def outcome(url: str) -> tuple[Outcome, str]:
    (finding,) = await shared_index(url, ["engines"])
    return finding.outcome, f"{finding.said} -> {finding.remedy}"


async def test_the_rights_that_we_advise_suffice(redis_of_each_version: RedisServer) -> None:
    """And nothing is left behind that does not expire."""
    redis = redis_of_each_version
    assert redis.send("ACL", "SETUSER", "advised", "on", ">x", *RIGHTS.format("live").split()) == b"+OK\r\n"
    url = redis.url.replace("://", "://advised:x@") + "?namespace=live"
    assert await outcome(url) == (Outcome.OK, "takes reads, writes, leases and loads -> ")
    keys = redis.send("KEYS", "live:*").split(b"\r\n")[2::2]
    assert keys
    assert all(int(redis.send("PTTL", key).strip(b":\r\n")) > 0 for key in keys)


async def test_a_cluster(tmp_path: Path) -> None:
    """As a cluster it takes all; without cluster=true the remedy says what is missing."""
    with redis_cluster(tmp_path) as url:
        assert (await outcome(url))[0] is Outcome.OK
        state, told = await outcome(url.partition("?")[0])
    assert state is Outcome.FAILED
    assert "add cluster=true" in told


@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), "raise maxmemory"),
        (("SET", "smetric:1:{engines}:state", "x"), "namespace=NAME"),
    ],
    ids=["full", "keys of another application"],
)
async def test_what_redis_refuses_has_a_remedy(own_redis: RedisServer, setting: tuple[str, ...], remedy: str) -> None:
    """It is there, and its own words are shown."""
    assert own_redis.send(*setting) == b"+OK\r\n"
    state, told = await outcome(own_redis.url)
    assert state is Outcome.FAILED
    assert remedy in told


async def test_a_redis_that_hangs(own_redis: RedisServer) -> None:
    """It is not waited for."""
    own_redis.pause()
    try:
        state, told = await outcome(own_redis.url)
    finally:
        own_redis.resume()
    assert state is Outcome.FAILED
    assert "no answer" in told


async def test_no_shared_index() -> None:
    """In memory there is nothing to try; a wrong URL is a mistake of the command line."""
    assert await shared_index("memory://", []) == ()
    with pytest.raises(ConfigError):
        await shared_index("redis://h:port/0", [])
