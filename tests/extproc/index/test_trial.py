"""A Redis that refuses: said at the start, for each use, in its own words, and its end; requests never wait for it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from extproc.base import metrics
from extproc.base.errors import IndexUnavailable
from extproc.index import Change, trial
from extproc.index.redis import RedisIndex
from extproc.index.trial import POOL, try_all
from extproc.shared_state import standing
from extproc.shared_state.redis_url import parse
from tests.support.redis_server import RedisServer, redis_cluster, redis_server
from tests.support.shared_index import until_it_works

Refuse = Callable[[RedisServer], str]  # has it refuse; returns how to reach it


def plainly(redis: RedisServer, *words: str) -> str:
    assert redis.send(*words).startswith(b"+OK")
    return redis.url


def as_a_user(redis: RedisServer, *rules: str) -> str:
    plainly(redis, "ACL", "SETUSER", "u", "reset", "on", ">x", "~*", "&*", "+@all", *rules)
    plainly(redis, "SCRIPT", "FLUSH")
    return redis.url.replace("://", "://u:x@")


def full(redis: RedisServer) -> str:
    plainly(redis, "CONFIG", "SET", "maxmemory-policy", "noeviction")
    return plainly(redis, "CONFIG", "SET", "maxmemory", "1")


def orphaned(redis: RedisServer) -> str:
    plainly(redis, "CONFIG", "SET", "replica-serve-stale-data", "no")
    return plainly(redis, "REPLICAOF", "127.0.0.1", "1")


def without_disk(redis: RedisServer) -> str:
    """As after a failed save: saving is asked for, and the last one has failed."""
    plainly(redis, "CONFIG", "SET", "dir", "/proc")  # where nobody can write
    plainly(redis, "CONFIG", "SET", "save", "3600 1")
    redis.send("SET", "other", "x")
    redis.send("BGSAVE")
    for _ in range(500):
        if b"rdb_last_bgsave_status:err" in redis.send("INFO", "persistence"):
            return redis.url
        time.sleep(0.02)
    raise TimeoutError("it saves")


def strangers(redis: RedisServer) -> str:
    for key in ("state", "blocks", "leases"):
        plainly(redis, "SET", f"smetric:1:{{{POOL}}}:{key}".replace(" ", "%20"), "x")
    return redis.url


# What is refused then, and how Redis says so.
REFUSALS: Mapping[str, tuple[Refuse, set[str], str]] = {
    "no scripts": (
        lambda redis: as_a_user(redis, "-@scripting"),
        {"look up prompts", "store blocks", "report followers", "sweep", "show the state", "lease engines"},
        "NOPERM this user has no permissions to run the 'evalsha' command",
    ),
    "no EVAL, only EVALSHA": (
        lambda redis: as_a_user(redis, "-eval"),
        {"look up prompts", "store blocks", "report followers", "sweep", "show the state", "lease engines"},
        "NOPERM this user has no permissions to run the 'eval' command",
    ),
    "no HSET within scripts": (
        lambda redis: as_a_user(redis, "-hset"),
        {"store blocks", "report followers", "lease engines"},
        "can't run this command",
    ),
    "no channels": (
        lambda redis: as_a_user(redis, "resetchannels"),
        {"tell loads", "hear loads"},
        "NOPERM this user has no permissions to access one of the channels",
    ),
    "no PING": (lambda redis: as_a_user(redis, "-ping", "-publish"), {"tell loads"}, "'publish'"),
    "no SET": (lambda redis: as_a_user(redis, "-set"), {"remember responses"}, "NOPERM"),
    "other keys only": (
        lambda redis: as_a_user(redis, "resetkeys", "~other:*"),
        {"look up prompts", "store blocks", "remember responses", "recall responses", "lease engines"},
        "NOPERM this user has no permissions to access one of the keys",
    ),
    "a replica": (
        lambda redis: plainly(redis, "REPLICAOF", "127.0.0.1", "1"),
        {"store blocks", "report followers", "remember responses", "lease engines"},
        "READONLY You can't write against a read only replica",
    ),
    "a replica without its master": (orphaned, {"look up prompts", "recall responses", "show the state"}, "MASTERDOWN"),
    "full": (full, {"remember responses", "lease engines"}, "OOM command not allowed when used memory > 'maxmemory'"),
    "a full disk": (without_disk, {"store blocks", "remember responses", "lease engines"}, "MISCONF"),
    "another application's keys": (strangers, {"look up prompts", "store blocks", "lease engines"}, "WRONGTYPE"),
}


async def refused(url: str) -> Sequence[tuple[str, str]]:
    return [(purpose, str(error)) for purpose, error in await try_all(parse(url), [])]


@pytest.mark.parametrize("name", REFUSALS)
async def test_each_refusal_is_found_and_said(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """For every use, with Redis's own words and a remedy, once however often it is tried; and counted by its cause."""
    refuse, uses, words = REFUSALS[name]
    with redis_server() as redis:
        url = refuse(redis)
        for _ in range(2):
            assert uses <= {purpose for purpose, _ in await refused(url)}
    where = f"Redis at 127.0.0.1:{redis.port}"
    for use in uses:
        said = [line for line in caplog.messages if line.startswith(f"{where} refuses to {use}")]
        assert len(said) == len(set(said)) >= 1
        assert any(words in line and "; " in line for line in said)
    shown = next(one for one in standing.shown(0.0) if one["redis"].endswith(str(redis.port)))
    assert uses <= {one["asked"] for one in shown["refused"]}
    causes = {one["cause"] for one in shown["refused"]}
    counted = {sample.labels["cause"] for sample in next(iter(metrics.INDEX_ERRORS.collect())).samples if sample.value}
    assert causes <= counted


@pytest.mark.parametrize("password", ["wrong", None])
async def test_a_wrong_password(own_redis: RedisServer, password: str | None, caplog: pytest.LogCaptureFixture) -> None:
    """Redis is of no use to us at all: said once, with its words, however many links of a router find out."""
    plainly(own_redis, "CONFIG", "SET", "requirepass", "right")
    url = own_redis.url.replace("://", f"://:{password}@") if password else own_redis.url
    index = RedisIndex.from_url(url)
    for call in (lambda: index.match("pool", [1]), lambda: try_all(parse(url), []), lambda: index.sweep("pool")):
        with pytest.raises(IndexUnavailable):
            await call()
    await index.close()
    (said,) = [line for line in caplog.messages if "refuses us" in line]
    assert ("WRONGPASS" if password else "NOAUTH") in said
    assert "correct user and password in the index URL" in said
    assert "wrong@" not in said


@asynccontextmanager
async def watched(url: str, pools: Sequence[str] = ("engines",)) -> AsyncIterator[None]:
    task = asyncio.create_task(trial.watch(url, lambda: pools))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(promise: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not promise():
            await asyncio.sleep(0.02)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "AGAIN_S", 0.1)
    monkeypatch.setattr(standing, "CALM_S", 0.3)


async def test_the_end_is_said_although_nobody_asks(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture, quick: None
) -> None:
    """A stranger's value in a pool in use goes away: said within seconds, without a request."""
    key = "smetric:1:{engines}:state"
    plainly(own_redis, "SET", key, "x")
    async with watched(own_redis.url):
        await until(lambda: any("refuses to look up prompts of pool engines: WRONGTYPE" in m for m in caplog.messages))
        own_redis.send("DEL", key)
        await until(lambda: any("no longer refuses to look up prompts" in line for line in caplog.messages))
        await until(lambda: not next(s for s in standing.shown(0.0) if str(own_redis.port) in s["redis"])["refused"])


async def test_what_requests_met_is_tried_again(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture, quick: None
) -> None:
    """A response could not be remembered, because Redis was full. The end is said although no other is stored."""
    index = RedisIndex.from_url(own_redis.url)
    async with watched(own_redis.url):
        full(own_redis)
        with pytest.raises(IndexUnavailable):
            await _patiently(lambda: index.remember("engines", "r", "a", 60))
        plainly(own_redis, "CONFIG", "SET", "maxmemory", "0")
        await until(lambda: any("no longer refuses to remember responses" in line for line in caplog.messages))
    await index.close()


async def _patiently(call: Callable[[], Awaitable[Any]]) -> None:
    """Until Redis answers, whatever it answers."""
    for _ in range(200):
        try:
            await call()
        except IndexUnavailable as error:
            if error.__cause__ is not None and not isinstance(error.__cause__, TimeoutError):
                raise
        await asyncio.sleep(0.02)


# redis-py drops the nodes of a cluster that it reads anew without closing them, and says so of itself.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_cluster_with_a_missing_slot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Redis says that the cluster is down. That is said once, is no bug of ours, and costs no decision its budget."""
    servers: list[RedisServer] = []
    with redis_cluster(tmp_path, servers=servers) as url:
        index = RedisIndex.from_url(f"{url}&budget_ms=2000")
        await until_it_works(lambda: index.apply([Change("pool", "a", forget=True, add=[1])]))
        slot = str(key_slot(b"pool"))
        for server in servers:
            server.send("CLUSTER", "DELSLOTS", slot)
        await until(lambda: all(b"cluster_state:fail" in server.send("CLUSTER", "INFO") for server in servers))
        async with asyncio.timeout(30):
            while index._reads._there:
                with suppress(IndexUnavailable):
                    await index.match("pool", [1])
        for _ in range(5):
            with pytest.raises(IndexUnavailable):
                await index.match("pool", [1])
            await asyncio.sleep(0.3)
        said = [line for line in caplog.messages if "refuses us" in line]
        assert len(said) == 1
        assert "CLUSTER INFO" in said[0]
        assert not [line for line in caplog.messages if "bug" in line]
        for server in servers:
            server.send("CLUSTER", "ADDSLOTS", slot)
            break
        async with asyncio.timeout(30):
            while not any("is back" in line for line in caplog.messages):
                with suppress(IndexUnavailable):
                    await index.match("pool", [1])
                await asyncio.sleep(0.05)
        await index.close()
    gc.collect()
