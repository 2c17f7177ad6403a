"""Several followers on one Redis: each instance's events have one follower, and each follower about as many."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.shared_state import leases as leasing
from extproc.shared_state.leases import Leases
from extproc.shared_state.link import PROBE_S
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


async def test_what_strangers_wrote_keeps_nobody_from_a_lease(open_leases: Open) -> None:
    """A field that no router wrote is removed, instead of failing every renewal."""
    alone = open_leases("a")
    await alone.renew("pool", NAMES)
    key = leasing._key(alone._namespace, "pool")
    await alone._client.execute_command("HSET", key, "x", "short", b"m:\xff", b"\xff" * 9, f"l:{NAMES[0]}", "")
    assert await alone.renew("pool", NAMES) == set(NAMES)


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
    monkeypatch.setattr(leasing, "LEASE_S", 0.5)
    dead, alive = open_leases("dead"), open_leases("alive")
    assert [len(held) for held in await rounds([dead, alive])] == [4, 4]
    assert len(await alive.renew("pool", NAMES)) == 4
    async with asyncio.timeout(10):
        while await alive.renew("pool", NAMES) != set(NAMES):
            await asyncio.sleep(0.05)


async def test_a_dead_replica_is_succeeded_though_its_clock_was_ahead(
    open_leases: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes another's place has a clock of its own, and clocks are set back: a lease lasts no longer
    than it should, and who is alive keeps what it holds."""
    monkeypatch.setattr(leasing, "LEASE_S", 0.5)
    dead, alive = open_leases("dead"), open_leases("alive")
    before = await rounds([dead, alive])
    key = leasing._key(alive._namespace, "pool")
    for field in await alive._client.execute_command("HKEYS", key):
        value = await alive._client.execute_command("HGET", key, field)
        (deadline,) = struct.unpack_from(">d", value)
        await alive._client.execute_command("HSET", key, field, struct.pack(">d", deadline + 3_600_000) + value[8:])
    assert await alive.renew("pool", NAMES) == before[1]
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
    monkeypatch.setattr(leasing, "LEASE_S", 0.5)
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
    monkeypatch.setattr(leasing, "LEASE_S", 0.2)
    leases = Leases.from_url(own_redis.url, "cut off")
    assert await leases.renew("pool", NAMES) == set(NAMES)
    with monkeypatch.context() as cut:
        cut.setattr(leasing, "LEASE_BUDGET_S", 0.0)
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
