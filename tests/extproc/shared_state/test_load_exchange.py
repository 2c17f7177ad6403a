"""Several routers on one Redis: each instance's events have one follower, and each router's loads count for all."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.routing.pools.loads import Loads
from extproc.shared_state import load_exchange
from extproc.shared_state.link import PROBE_S
from extproc.shared_state.load_exchange import Leases, LoadExchange
from tests.support.redis_server import RedisServer, redis_server

NAMES = [f"10.0.0.{i}:8000" for i in range(8)]

Open = Callable[[str], Leases]


@pytest.fixture
async def open_leases(redis_of_each_version: RedisServer) -> AsyncIterator[Open]:
    """Opens the leases of a replica, in a namespace of this test."""
    url = f"{redis_of_each_version.url}?namespace={uuid.uuid4().hex}"
    opened: list[Leases] = []

    def open_(replica: str) -> Leases:
        opened.append(Leases.from_url(url, replica))
        return opened[-1]

    yield open_
    for leases in opened:
        await leases.close()


async def rounds(members: Sequence[Leases], wanted: Sequence[str] = NAMES, count: int = 3) -> list[frozenset[str]]:
    """What each member holds after they all renewed a few times in turn; nothing is ever held twice."""
    held: list[frozenset[str]] = []
    for _ in range(count):
        held = [await member.renew("pool", wanted) for member in members]
    assert sum(map(len, held)) == len(frozenset().union(*held))
    return held


async def test_one_replica_holds_everything(open_leases: Open) -> None:
    """A replica alone follows all instances, of each pool for itself."""
    alone = open_leases("a")
    assert await alone.renew("pool", NAMES) == set(NAMES)
    assert await alone.renew("pool", NAMES) == set(NAMES)
    assert await alone.renew("other", NAMES[:1]) == set(NAMES[:1])
    assert await alone.renew("empty", []) == frozenset()


async def test_newcomers_get_their_share(open_leases: Open) -> None:
    """With each replica that joins, the instances are spread anew: all are held, by each about as many."""
    members = [open_leases("a")]
    await rounds(members)
    for name, shares in (("b", [4, 4]), ("c", [2, 3, 3]), ("d", [2, 2, 2, 2])):
        members.append(open_leases(name))
        held = await rounds(members)
        assert sorted(map(len, held)) == shares
        assert frozenset().union(*held) == set(NAMES)
        assert await rounds(members) == held, "and then they stay"


async def test_a_dead_replica_is_succeeded(open_leases: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a replica held that renews no more goes to the others when its lease has run out, and not before."""
    monkeypatch.setattr(load_exchange, "LEASE_S", 0.5)
    dead, alive = open_leases("dead"), open_leases("alive")
    assert [len(held) for held in await rounds([dead, alive])] == [4, 4]
    assert len(await alive.renew("pool", NAMES)) == 4
    async with asyncio.timeout(10):
        while await alive.renew("pool", NAMES) != set(NAMES):
            await asyncio.sleep(0.05)


async def test_closing_gives_back_at_once(open_leases: Open) -> None:
    """A replica that stops in order need not be waited for."""
    leaving, staying = open_leases("leaving"), open_leases("staying")
    await rounds([leaving, staying])
    await leaving.close()
    await rounds([staying])
    assert await staying.renew("pool", NAMES) == set(NAMES)


async def test_instances_come_and_go(open_leases: Open) -> None:
    """New instances are followed at once; those that left are given back, and the rest is spread anew."""
    members = [open_leases("a"), open_leases("b")]
    await rounds(members, NAMES[:2])
    assert [len(held) for held in await rounds(members, NAMES)] == [4, 4]
    kept = sorted((await rounds(members))[0])
    held = await rounds(members, kept)
    assert [len(part) for part in held] == [2, 2]
    assert frozenset().union(*held) == set(kept)


async def test_what_only_one_wants(open_leases: Open) -> None:
    """An instance that the other members do not know is followed by who knows it, beyond the fair share."""
    small, big = open_leases("small"), open_leases("big")
    for _ in range(4):
        held = [await small.renew("pool", NAMES[:2]), await big.renew("pool", NAMES)]
    assert held[0] | held[1] == set(NAMES)
    assert not held[0] & held[1]
    for _ in range(4):
        assert [await small.renew("pool", NAMES[:2]), await big.renew("pool", NAMES)] == held


async def test_leases_while_redis_is_away(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing raises; each replica keeps what it held, however long it takes, also when an empty Redis comes back."""
    monkeypatch.setattr(load_exchange, "LEASE_S", 0.5)
    one, other = (Leases.from_url(own_redis.url, replica) for replica in ("a", "b"))
    for _ in range(4):
        held = [await leases.renew("pool", NAMES) for leases in (one, other)]
    assert all(held)
    own_redis.stop()
    deadline = asyncio.get_running_loop().time() + 1.0
    while asyncio.get_running_loop().time() < deadline:
        assert [await leases.renew("pool", NAMES) for leases in (one, other)] == held
        await asyncio.sleep(0.05)
    assert await one.renew("pool", [next(iter(held[0]))]) == {next(iter(held[0]))}
    own_redis.start()
    # As in production, a renewal comes after the look for Redis (PROBE_S): both find it between two of each other's.
    for _ in range(6):
        assert [await leases.renew("pool", NAMES) for leases in (one, other)] == held
        await asyncio.sleep(PROBE_S + 0.1)
    for leases in (one, other):
        await leases.close()


async def test_a_successor_by_the_same_name_need_not_wait(open_leases: Open) -> None:
    """A process that is started again in place of a dead one takes over its leases at once."""
    dead, started_again = open_leases("a"), open_leases("a")
    assert await dead.renew("pool", NAMES) == set(NAMES)
    assert await started_again.renew("pool", NAMES) == set(NAMES)


async def test_a_lease_that_another_took_meanwhile_is_lost(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that could not reach Redis alone, while the others did, gives way to its successor."""
    monkeypatch.setattr(load_exchange, "LEASE_S", 0.2)
    leases = Leases.from_url(own_redis.url, "cut off")
    assert await leases.renew("pool", NAMES) == set(NAMES)
    with monkeypatch.context() as cut:
        cut.setattr(load_exchange, "LEASE_BUDGET_S", 0.0)
        assert await leases.renew("pool", NAMES) == set(NAMES)
    await asyncio.sleep(0.3)
    successor = Leases.from_url(own_redis.url, "successor")
    assert await successor.renew("pool", NAMES) == set(NAMES)
    assert await leases.renew("pool", NAMES) == set()
    for one in (leases, successor):
        await one.close()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def test_nobody_ever_shares_an_instance(runner: asyncio.Runner) -> None:
    """Whoever renews when, wanting whatever: no instance is held twice, and in the end each has its follower."""
    wishes = st.lists(st.tuples(st.integers(0, 2), st.sets(st.sampled_from(NAMES))), max_size=12)

    async def play(url: str, script: list[tuple[int, set[str]]]) -> None:
        members = [Leases.from_url(url, f"replica-{i}") for i in range(3)]
        wanted: list[set[str]] = [set(), set(), set()]
        held: list[frozenset[str]] = [frozenset()] * 3

        async def renew(member: int) -> None:
            held[member] = await members[member].renew("pool", wanted[member])
            assert held[member] <= wanted[member]
            assert sum(map(len, held)) == len(frozenset().union(*held))

        for member, wish in script:
            wanted[member] = wish
            await renew(member)
        for _ in range(4):
            for member in range(3):
                await renew(member)
        assert frozenset().union(*held) == set().union(*wanted)
        for leases in members:
            await leases.close()

    with redis_server() as server:

        @settings(max_examples=30, deadline=None)
        @given(wishes)
        def any_script(script: list[tuple[int, set[str]]]) -> None:
            runner.run(play(f"{server.url}?namespace={uuid.uuid4().hex}", script))

        any_script()


@asynccontextmanager
async def exchanging(url: str, replica: str, loads: Loads) -> AsyncIterator[LoadExchange]:
    exchange = LoadExchange.from_url(url, replica, loads, ["pool", "other"])
    task = asyncio.create_task(exchange.run())
    try:
        yield exchange
    finally:
        assert not task.done(), "the exchange ends only when it is told to"
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(promise: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not promise():
            await asyncio.sleep(0.005)


async def test_loads_count_for_all(redis_of_each_version: RedisServer) -> None:
    """What one router has in flight the others see soon, and see end; each pool for itself."""
    url = f"{redis_of_each_version.url}?namespace={uuid.uuid4().hex}"
    loads = {name: Loads() for name in "abc"}
    async with (
        exchanging(url, "a", loads["a"]) as exchange,
        exchanging(url, "b", loads["b"]),
        exchanging(url, "c", loads["c"]),
    ):
        await until(lambda: exchange.peers == {"b", "c"})
        tickets = [loads[name].start("pool", NAMES[0], 100) for name in "aab"]
        loads["c"].start("other", NAMES[0], 7)
        for each in loads.values():
            await until(lambda each=each: each.view("pool", NAMES[:2])[0] == [3, 0])  # type: ignore[misc]
            await until(lambda each=each: each.view("pool", NAMES[:2])[1] == [300, 0])  # type: ignore[misc]
            await until(lambda each=each: each.view("other", NAMES[:2])[0] == [1, 0])  # type: ignore[misc]
        tickets[0].move(NAMES[1])
        await until(lambda: loads["c"].view("pool", NAMES[:2])[0] == [2, 1])
        await until(lambda: loads["c"].view("pool", NAMES[:2])[1] == [200, 100])
        for ticket in tickets:
            ticket.release()
        await until(lambda: loads["c"].view("pool", NAMES[:2])[0] == [0, 0])


async def test_a_dead_router_stops_counting(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests of a router that fell silent no longer weigh on its instances."""
    monkeypatch.setattr(load_exchange, "SILENCE_S", 1.5)
    mine, theirs = Loads(), Loads()
    async with exchanging(own_redis.url, "mine", mine) as exchange:
        async with exchanging(own_redis.url, "theirs", theirs):
            theirs.start("pool", NAMES[0], 5)
            await until(lambda: mine.view("pool", NAMES[:1])[0] == [1])
        await until(lambda: mine.view("pool", NAMES[:1])[0] == [0])
        assert exchange.peers == frozenset()


@pytest.mark.parametrize("how", ["killed", "hanging"])
async def test_loads_while_redis_is_away(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Peers cannot be heard: they stop counting; they count again when Redis is back. Nothing raises."""
    monkeypatch.setattr(load_exchange, "SILENCE_S", 1.5)
    mine, theirs = Loads(), Loads()
    async with exchanging(own_redis.url, "mine", mine), exchanging(own_redis.url, "theirs", theirs):
        theirs.start("pool", NAMES[0], 5)
        await until(lambda: mine.view("pool", NAMES[:1])[0] == [1])
        if how == "killed":
            own_redis.stop()
        else:
            own_redis.pause()
        await until(lambda: mine.view("pool", NAMES[:1])[0] == [0])
        theirs.start("pool", NAMES[0], 5)
        if how == "killed":
            own_redis.start()
        else:
            own_redis.resume()
        await until(lambda: mine.view("pool", NAMES[:1])[0] == [2])


async def test_lost_messages_are_repaired(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish/subscribe may lose messages: the next complete one puts all counts right."""
    mine, theirs = Loads(), Loads()
    async with exchanging(own_redis.url, "mine", mine) as exchange, exchanging(own_redis.url, "theirs", theirs) as peer:
        await until(lambda: exchange.peers == {"theirs"} and peer.peers == {"mine"})
        hear = exchange._hear
        lost: list[bytes] = []

        def deaf(data: bytes, now: float) -> None:
            whole = load_exchange.msgspec.msgpack.decode(data)[1]
            hear(data, now) if whole else lost.append(data)

        monkeypatch.setattr(exchange, "_hear", deaf)
        theirs.start("pool", NAMES[1], 5)
        while not lost:  # what changes as a complete message is due goes with that one
            ticket = theirs.start("pool", NAMES[0], 5)
            await asyncio.sleep(0.02)
            ticket.release()
            await asyncio.sleep(0.02)
        await until(lambda: mine.view("pool", NAMES[:2])[0] == [0, 1])


async def test_newcomers_hear_everything_at_once(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that joins need not wait for the next complete message of the others."""
    monkeypatch.setattr(load_exchange, "WHOLE_S", 300.0)
    monkeypatch.setattr(load_exchange, "SILENCE_S", 600.0)
    mine, theirs = Loads(), Loads()
    theirs.start("pool", NAMES[0], 5)
    async with exchanging(own_redis.url, "theirs", theirs) as exchange:
        await until(lambda: published(own_redis) == 1)
        async with exchanging(own_redis.url, "mine", mine):
            await until(lambda: mine.view("pool", NAMES[:1])[0] == [1])
            assert exchange.peers == {"mine"}


async def test_a_router_alone_says_little(own_redis: RedisServer) -> None:
    """While nobody listens, changes of the loads are not published, only that this router lives."""
    mine = Loads()
    started = time.monotonic()
    async with exchanging(own_redis.url, "mine", mine):
        for _ in range(200):
            mine.start("pool", NAMES[0], 1)
            await asyncio.sleep(0.01)
    assert 1 <= published(own_redis) <= 2 + (time.monotonic() - started) / load_exchange.WHOLE_S


def published(server: RedisServer) -> int:
    stats = server.send("INFO", "commandstats").decode()
    return int(stats.partition("cmdstat_publish:calls=")[2].partition(",")[0] or 0)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\xff", b"text", load_exchange.msgspec.msgpack.encode(("x", True, {"pool": {"a": (-1, 0)}}))],
)
async def test_strange_messages_are_ignored(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    """What no router sent is reported once and changes nothing."""
    mine, theirs = Loads(), Loads()
    async with exchanging(own_redis.url, "mine", mine) as exchange, exchanging(own_redis.url, "theirs", theirs):
        await until(lambda: exchange.peers == {"theirs"})
        for _ in range(20):
            own_redis.send("PUBLISH", exchange._channel, garbage)
        theirs.start("pool", NAMES[0], 5)
        await until(lambda: mine.view("pool", NAMES[:1])[0] == [1])
    assert len([record for record in caplog.records if "no router of ours" in record.message]) == 2, "one each"


async def test_unknown_pools_and_floods_of_peers_are_not_kept(own_redis: RedisServer) -> None:
    """What peers say of pools that we do not have is not kept, nor are ever more peers."""
    kept: list[tuple[str, str]] = []

    class Recorder(Loads):
        def merge(self, replica: str, pool: str, counts: Any) -> None:
            kept.append((replica, pool))

    exchange = LoadExchange.from_url(own_redis.url, "mine", Recorder(), ["pool"])
    for i in range(2 * load_exchange.MAX_PEERS):
        message = (f"peer-{i}", False, {"pool": {"a": (1, 1)}, "unknown": {"a": (1, 1)}})
        exchange._hear(load_exchange.msgspec.msgpack.encode(message), 0.0)
    assert len(exchange.peers) == load_exchange.MAX_PEERS
    assert {pool for _, pool in kept} == {"pool"}
    assert len(kept) == load_exchange.MAX_PEERS
