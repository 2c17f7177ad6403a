"""What the Redis index promises beyond the contract: its writes are never silently lost, and it cleans up."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from extproc.base.errors import IndexLost, IndexUnavailable
from extproc.base.model import EventReport, Knowledge
from extproc.index import Change
from extproc.index import redis as module
from extproc.index.redis import RedisIndex
from extproc.shared_state.connections import Client
from extproc.shared_state.script import Script
from tests.support.redis_server import RedisServer

CHAIN = tuple(range(1000, 2600))
EXACT = EventReport(Knowledge.EXACT, 1, 0.0)

Opener = Callable[[], RedisIndex]


@pytest.fixture
async def open_another(redis_of_each_version: RedisServer) -> AsyncIterator[Opener]:
    """Opens one more client of the same, at first empty, namespace: another router."""
    url = f"{redis_of_each_version.url}?namespace={uuid.uuid4().hex}&budget_ms=5000"
    opened: list[RedisIndex] = []

    def open_() -> RedisIndex:
        opened.append(RedisIndex.from_url(url))
        return opened[-1]

    yield open_
    for index in opened:
        await index.close()


@pytest.fixture
def index(open_another: Opener) -> RedisIndex:
    return open_another()


def keys_of(index: RedisIndex, pool: str = "pool") -> dict[str, str]:
    return {key.rpartition(":")[2]: key for key in index._keys(pool)}


async def raw(index: RedisIndex, *words: Any) -> Any:
    return await index._client.execute_command(*words)


async def eventually(promise: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what is to come about by itself, with room for a busy machine."""
    async with asyncio.timeout(20):
        while not await promise():
            await asyncio.sleep(0.02)


async def test_routers_share_what_was_written(open_another: Opener) -> None:
    """One router follows the events, another finds the hits, the sizes, the adapters and the reports."""
    follower, router = open_another(), open_another()
    await follower.apply([Change("pool", "a", forget=True, add=CHAIN, adapters=["sql"])])
    await follower.report("pool", {"a": EXACT})
    assert await router.match("pool", CHAIN) == {"a": 1600}
    assert router.adapters("pool") == {"sql": {"a"}}
    assert await router.sizes("pool") == {"a": 1600}
    assert await router.reports("pool") == {"a": EXACT}


async def test_a_match_is_one_round_trip(index: RedisIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """One command, also where instances are new, restarted or gone since the last match."""
    await index.apply([Change("pool", "a", add=CHAIN)])
    await index.match("pool", CHAIN)
    sent: list[str] = []
    send = index._client.execute_command

    async def counted(*words: Any, **options: Any) -> Any:
        sent.append(words[0])
        return await send(*words, **options)

    for change in (Change("pool", "b", add=CHAIN[:9]), Change("pool", "a", forget=True), Change("pool", "c", add=[5])):
        await index.apply([change])
        with monkeypatch.context() as patch:
            patch.setattr(index._client, "execute_command", counted)
            await index.match("pool", CHAIN)
    assert sent == ["EVALSHA"] * 3


async def test_names_travel_once(index: RedisIndex, open_another: Opener) -> None:
    """An answer names an instance only until the router knows it."""
    router = open_another()
    answers: list[Sequence[Any]] = []
    directory = router._directories["pool"]
    read = directory.read
    directory.read = lambda answer: (answers.append(answer), read(answer))[1]  # type: ignore[method-assign]
    await index.apply([Change("pool", name, add=CHAIN[:5]) for name in "abc"])
    for _ in range(2):
        assert await router.match("pool", CHAIN) == dict.fromkeys("abc", 5)
    await index.apply([Change("pool", "b", forget=True, add=CHAIN[:4])])
    assert await router.match("pool", CHAIN) == {"a": 5, "b": 4, "c": 5}
    assert [answer[2][::2] for answer in answers] == [[b"a", b"b", b"c"], [], [b"b"]]


async def test_keys_stay_within_one_hash_slot(index: RedisIndex) -> None:
    """All keys of a pool have the same braces, so a cluster keeps them on one node."""
    assert {key[key.index("{") : key.index("}")] for key in index._keys("a{b}c")} == {"{a%7Bb%7Dc"}


async def test_namespaces_are_separate(redis_of_each_version: RedisServer, index: RedisIndex) -> None:
    """Two deployments with the same pools may use one database."""
    await index.apply([Change("pool", "a", add=CHAIN)])
    other = RedisIndex.from_url(f"{redis_of_each_version.url}?namespace={uuid.uuid4().hex}")
    await other.apply([Change("pool", "b", add=CHAIN[:3])])
    assert await other.match("pool", CHAIN) == {"b": 3}
    await other.close()


async def test_another_layout_is_ignored(index: RedisIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Routers of another schema neither see nor touch our keys, so versions can be rolled over one Redis."""
    await index.apply([Change("pool", "a", add=CHAIN)])
    with monkeypatch.context() as patch:
        patch.setattr(module, "SCHEMA", 2)
        assert await index.match("pool", CHAIN) == {}
    assert await index.match("pool", CHAIN) == {"a": 1600}


@pytest.mark.parametrize("key", ["blocks", "holders", "state", "all"])
async def test_lost_data_is_noticed_and_written_again(index: RedisIndex, key: str) -> None:
    """Flushed, or one key of it evicted: the next write and the next report say so, and a fresh start repairs it."""
    await index.apply([Change("pool", "a", forget=True, add=CHAIN), Change("pool", "b", forget=True, add=CHAIN[:5])])
    await index.report("pool", {"a": EXACT, "b": EXACT})
    assert await index.match("pool", CHAIN) == {"a": 1600, "b": 5}
    keys = keys_of(index)
    await raw(index, "DEL", *(keys.values() if key == "all" else [keys[key]]))
    with pytest.raises(IndexLost) as lost:
        await index.report("pool", {"a": EXACT, "b": EXACT})
    assert (lost.value.pool, lost.value.instances) == ("pool", {"a", "b"})
    with pytest.raises(IndexLost) as lost:
        await index.apply([Change("pool", "a", add=[1]), Change("pool", "b", forget=True, add=CHAIN[:7])])
    assert lost.value.instances == {"a"}
    assert await index.match("pool", CHAIN) == {"b": 7}
    with pytest.raises(IndexLost):
        await index.apply([Change("pool", "a", add=[1])])
    await index.apply([Change("pool", "a", forget=True, add=CHAIN)])
    await index.report("pool", {"a": EXACT, "b": EXACT})
    assert await index.match("pool", CHAIN) == {"a": 1600, "b": 7}


async def test_a_report_beside_a_fresh_start_is_no_loss(index: RedisIndex) -> None:
    """A writer may begin anew while another of its tasks reports: nothing was lost."""
    await index.apply([Change("pool", "a", forget=True)])
    for steps in range(20):
        anew = asyncio.create_task(index.apply([Change("pool", "a", forget=True, add=CHAIN)]))
        for _ in range(steps):
            await asyncio.sleep(0)
        await index.report("pool", {"a": EXACT})
        await anew


async def test_small_writes_travel_together(index: RedisIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """What many followers write while a round trip is under way makes one more, each hearing of its own loss only."""
    await index.apply([Change("pool", f"i{n}", forget=True, add=CHAIN[:1]) for n in range(50)])
    await raw(index, "ZREM", keys_of(index)["holders"], "i7")
    rounds: list[int] = []
    run_all = Script.run_all

    async def counted(script: Script, client: Client, calls: Sequence[Any]) -> list[Any]:
        rounds.append(len(calls))
        return await run_all(script, client, calls)

    monkeypatch.setattr(Script, "run_all", counted)
    writes = [index.apply([Change("pool", f"i{n}", add=CHAIN[1:3])]) for n in range(50)]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [n for n, outcome in enumerate(outcomes) if isinstance(outcome, IndexLost)] == [7]
    assert [n for n, outcome in enumerate(outcomes) if outcome is not None] == [7]
    assert sum(rounds) == 50
    assert len(rounds) <= 4
    assert await index.match("pool", CHAIN) == {f"i{n}": 3 for n in range(50) if n != 7}


async def test_a_writer_that_gives_up_waiting(index: RedisIndex) -> None:
    """A cancelled write holds up no other, and what the same writer writes next comes after it."""
    await index.apply([Change("pool", "a", forget=True, add=CHAIN[:5])])
    for steps in range(12):
        given_up = asyncio.create_task(index.apply([Change("pool", "a", add=CHAIN[5:1600])]))
        other = asyncio.create_task(index.apply([Change("pool", "b", add=CHAIN)]))
        for _ in range(steps):
            await asyncio.sleep(0)
        given_up.cancel()
        await index.apply([Change("pool", "a", forget=True, add=CHAIN[:5])])
        await other
        assert await index.match("pool", CHAIN) == {"a": 5, "b": 1600}


async def test_an_older_snapshot_is_noticed(index: RedisIndex) -> None:
    """Redis came back from a snapshot that lacks acknowledged writes: the writer hears of it."""
    await index.apply([Change("pool", "a", forget=True, add=CHAIN[:5])])
    dumps = {key: await raw(index, "DUMP", key) for key in keys_of(index).values()}
    await index.apply([Change("pool", "a", add=CHAIN[5:9])])
    for key, dump in dumps.items():
        if dump is not None:
            await raw(index, "RESTORE", key, 0, dump, "REPLACE")
    with pytest.raises(IndexLost):
        await index.report("pool", {"a": EXACT})
    with pytest.raises(IndexLost):
        await index.apply([Change("pool", "a", add=CHAIN[9:12])])
    assert await index.match("pool", CHAIN) == {"a": 5}


async def test_takeover(open_another: Opener) -> None:
    """Once another follower begins with an instance, the writes and reports of the former one are refused."""
    former, successor = open_another(), open_another()
    await former.apply([Change("pool", "a", forget=True, add=CHAIN), Change("pool", "b", forget=True, add=CHAIN[:2])])
    await successor.apply([Change("pool", "a", forget=True, add=CHAIN[:3])])
    with pytest.raises(IndexLost) as lost:
        await former.apply([Change("pool", "a", add=CHAIN[3:9]), Change("pool", "b", add=CHAIN[2:4])])
    assert lost.value.instances == {"a"}
    with pytest.raises(IndexLost):
        await former.report("pool", {"a": EXACT})
    await successor.report("pool", {"a": EXACT})
    assert await successor.match("pool", CHAIN) == {"a": 3, "b": 4}


async def test_going_on_from_what_stands_there(open_another: Opener) -> None:
    """A writer that begins without `forget` takes over what its predecessor wrote, and its predecessor hears of it."""
    former, successor = open_another(), open_another()
    await former.apply([Change("pool", "a", forget=True, add=CHAIN[:3])])
    await successor.apply([Change("pool", "a", add=CHAIN[3:6])])
    assert await successor.match("pool", CHAIN) == {"a": 6}
    with pytest.raises(IndexLost):
        await former.apply([Change("pool", "a", add=CHAIN[6:9])])


async def test_late_writes_are_ignored(index: RedisIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that Redis reads only after newer ones, out of another connection's buffer, changes nothing any more."""
    late: list[tuple[Script, Client, Sequence[Any]]] = []
    run_all = Script.run_all

    async def recorded(script: Script, client: Client, calls: Sequence[Any]) -> list[Any]:
        late.append((script, client, calls))
        return await run_all(script, client, calls)

    monkeypatch.setattr(Script, "run_all", recorded)
    await index.apply([Change("pool", "a", forget=True, add=CHAIN[:5])])
    await index.apply([Change("pool", "a", add=CHAIN[5:9])])
    await index.apply([Change("pool", "a", remove=CHAIN[8:2:-1])])
    for script, client, calls in tuple(late[:2]):
        assert await run_all(script, client, calls) == [0]
    assert await index.match("pool", CHAIN) == {"a": 3}
    await index.apply([Change("pool", "a", add=CHAIN[3:4])])
    assert await index.match("pool", CHAIN) == {"a": 4}


async def test_a_restarted_redis_is_sent_its_scripts_again(index: RedisIndex) -> None:
    """Scripts that Redis no longer has cost no call, in the middle of a batch neither."""
    changes = [Change("pool", f"i{n}", forget=True, add=CHAIN) for n in range(9)]
    await index.apply(changes)
    await raw(index, "SCRIPT", "FLUSH")
    assert await index.match("pool", CHAIN) == {f"i{n}": 1600 for n in range(9)}
    await raw(index, "SCRIPT", "FLUSH")
    await index.apply(changes)
    await raw(index, "SCRIPT", "FLUSH")
    await index.report("pool", {"i1": EXACT})
    await raw(index, "SCRIPT", "FLUSH")
    assert await index.sizes("pool") == {f"i{n}": 1600 for n in range(9)}


async def test_a_refusal_is_no_other_exception(index: RedisIndex) -> None:
    """Whatever stands under our keys, and whatever Redis refuses, callers see IndexUnavailable."""
    keys = keys_of(index)
    await raw(index, "SET", keys["blocks"], "a string")
    await raw(index, "HSET", keys["state"], "epoch", "x", "last", "1", "h:a", "short", "r:a", "garbage, too long")
    for call in (
        index.match("pool", CHAIN),
        index.apply([Change("pool", "a", add=CHAIN)]),
        index.report("pool", {"a": EXACT}),
    ):
        with pytest.raises(IndexUnavailable):
            await call


async def test_what_strangers_wrote_among_our_fields_is_left_out(index: RedisIndex) -> None:
    """One field that no router wrote hides nobody else's blocks, report or adapters, and no decision fails for it."""
    keys = keys_of(index)
    await index.apply([Change("pool", "a", add=CHAIN, adapters=["lora"])])
    await index.report("pool", {"a": EXACT})
    await raw(index, "HSET", keys["state"], "h:x", "short", "r:x", "garbage, too long", b"h:\xff", b"\xff" * 40)
    await raw(index, "HSET", keys["state"], "r:y", b"\0" * 8 + b"exact x y", b"a:\xff\xfe", b"\xff")
    await raw(index, "ZADD", keys["holders"], 2**30, b"\xff\xfe", 0.5, "half", "inf", "endless")
    await raw(index, "ZADD", keys["adapters"], 7, b"\xff\xfe")
    assert await index.sizes("pool") == {"a": 1600}
    assert (await index.reports("pool"))["a"].state is EXACT.state
    assert await index.match("pool", CHAIN) == {"a": 1600}
    assert index.adapters("pool")["lora"] == {"a"}


async def test_what_strangers_wrote_among_our_fields_is_swept(
    index: RedisIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps nobody from sweeping, and where it took the place of ours, the writer writes it again."""
    monkeypatch.setattr(module, "SWEEP_EVERY_S", 0.1)
    state = keys_of(index)["state"]
    await index.apply([Change("pool", "a", add=CHAIN)])
    await raw(index, "HSET", state, "h:a", "short", "h:x", "short", "r:x", "y", "sweeper", "?")

    async def swept() -> bool:
        return not any(await raw(index, "HMGET", state, "h:a", "h:x", "r:x"))

    await eventually(swept)
    with pytest.raises(IndexLost):
        await index.apply([Change("pool", "a", add=CHAIN)])
    await index.apply([Change("pool", "a", forget=True, add=CHAIN)])
    assert await index.match("pool", CHAIN) == {"a": 1600}


async def test_the_sweeper_clears_up(index: RedisIndex, open_another: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """What forgotten instances held disappears from Redis by itself; what others hold stays."""
    monkeypatch.setattr(module, "SWEEP_EVERY_S", 0.1)
    other = open_another()
    await other.apply([Change("pool", "b", add=CHAIN[:100])])
    await index.apply([Change("pool", f"i{n}", add=[*CHAIN, n]) for n in range(20)])
    await index.apply([Change("pool", f"i{n}", forget=True) for n in range(20)])
    blocks, state = keys_of(index)["blocks"], keys_of(index)["state"]

    async def swept() -> bool:
        assert await index.match("pool", CHAIN) == {"b": 100}
        return await raw(index, "HLEN", blocks) == 101 and await raw(index, "HGET", state, "dead") == b""

    await eventually(swept)
    assert await raw(index, "HGET", blocks, CHAIN[5].to_bytes(8, "little")) == b"\x00\x00\x01"


async def test_one_router_sweeps_at_a_time(open_another: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one has the lease on sweeping, the step of another does nothing."""
    monkeypatch.setattr(module, "SWEEP_LEASE_S", 60.0)
    first, second = open_another(), open_another()
    await first.apply([Change("pool", "a", forget=True, add=CHAIN)])
    await first.apply([Change("pool", "a", forget=True)])
    step = [*first._keys("pool"), first._author.name, 60_000, module.RETENTION_S * 1000, 50]
    assert await module._SWEEP.run(first._client, step) == 1
    step[4] = second._author.name
    assert await module._SWEEP.run(second._client, step) == 0
    await second.sweep("pool")
    assert await raw(first, "HLEN", keys_of(first)["blocks"]) > 1400
    await first.sweep("pool")
    assert await raw(first, "HLEN", keys_of(first)["blocks"]) == 1


async def test_what_a_clock_ahead_wrote_is_not_believed(index: RedisIndex) -> None:
    """Redis's clock is set back, or another server takes its place: a report of the future is nobody's, as its
    follower reports again within a second if it lives; and a dead router's lease on sweeping stops no other."""
    await index.apply([Change("pool", "a", add=CHAIN[:5])])
    await index.report("pool", {"a": EXACT})
    assert list(await index.reports("pool")) == ["a"]
    state = keys_of(index)["state"]
    now_ms = 1000 * int((await raw(index, "TIME"))[0])
    ahead = struct.pack(">d", now_ms + 3_600_000)
    report = await raw(index, "HGET", state, "r:a")
    await raw(index, "HSET", state, "r:a", ahead + report[8:], "sweeper", b"somebody" + ahead)
    assert await index.reports("pool") == {}
    await index.report("pool", {"a": EXACT})
    assert list(await index.reports("pool")) == ["a"]
    await index.apply([Change("pool", "a", forget=True)])
    await index.sweep("pool")
    assert await raw(index, "HLEN", keys_of(index)["blocks"]) == 1


async def test_matches_stay_right_while_sweeping(index: RedisIndex) -> None:
    """Between two steps, a value may still name the dead where its neighbour no longer does; no answer shows it."""
    await index.apply([Change("pool", "gone", add=CHAIN), Change("pool", "stays", add=CHAIN[:777])])
    await index.apply([Change("pool", "gone", forget=True), Change("pool", "new", add=CHAIN[:1200])])
    step = [*index._keys("pool"), index._author.name, 60_000, module.RETENTION_S * 1000, 50]
    steps, more = 0, 1
    while more:
        assert await index.match("pool", CHAIN) == {"stays": 777, "new": 1200}
        more = await module._SWEEP.run(index._client, step)
        steps += 1
        if steps == 5:  # who dies during a round is swept in the next
            await index.apply([Change("pool", "short", add=CHAIN), Change("pool", "short", forget=True)])
    assert steps > 40
    assert await raw(index, "HLEN", keys_of(index)["blocks"]) == 1201
    assert await raw(index, "HGET", keys_of(index)["blocks"], CHAIN[900].to_bytes(8, "little")) == b"\x00\x00\x04"


async def test_reports_of_earlier_versions_are_read(open_another: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """While routers are upgraded one by one, a new one shows what the follower of an old one reports."""
    monkeypatch.setattr(module, "_written", lambda report: f"{report.state.value} {report.sequence} {report.lag_s}")
    index = open_another()
    await index.report("pool", {"a": EXACT})
    assert await index.reports("pool") == {"a": EXACT}


async def test_who_left_for_good_is_forgotten(open_another: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance that no writer speaks of any more, because all routers that knew it are gone, is swept away."""
    monkeypatch.setattr(module, "SWEEP_EVERY_S", 0.1)
    index = open_another()
    await index.apply([Change("pool", "left", add=CHAIN), Change("pool", "stays", add=CHAIN[:50])])
    await index.report("pool", {"left": EXACT})
    monkeypatch.setattr(module, "RETENTION_S", 1)

    async def gone() -> bool:
        await index.report("pool", {"stays": EXACT})
        return await raw(index, "HLEN", keys_of(index)["blocks"]) == 51

    await eventually(gone)
    assert await index.match("pool", CHAIN) == {"stays": 50}
    assert await index.sizes("pool") == {"stays": 50}
    assert b"r:left" not in await raw(index, "HKEYS", keys_of(index)["state"])


async def test_an_abandoned_pool_frees_itself(index: RedisIndex) -> None:
    """Every key has a time to live, which writers and reports renew."""
    await index.apply([Change("pool", "a", add=CHAIN, adapters=["x"])])
    keys = keys_of(index).values()
    for key in keys:
        await raw(index, "EXPIRE", key, 5)
    await index.report("pool", {"a": EXACT})
    assert all([await raw(index, "TTL", key) > module.RETENTION_S - 60 for key in keys])


async def test_old_reports_are_absent(index: RedisIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a follower that died, the last report is not shown as if it still held."""
    await index.report("pool", {"a": EXACT})
    monkeypatch.setattr(module, "REPORT_LIFE_S", -1.0)
    assert await index.reports("pool") == {}


async def test_memory_of_an_entry(index: RedisIndex) -> None:
    """A prompt block with one holder takes at most 80 bytes of Redis."""
    for n in range(32):
        await index.apply([Change("pool", f"10.0.0.{n}:8000", add=range(n << 32, (n << 32) + 2000))])
    used = await raw(index, "MEMORY", "USAGE", keys_of(index)["blocks"], "SAMPLES", 0)
    assert used / 64_000 <= 80


async def test_id_numbers_run_out(index: RedisIndex) -> None:
    """After 16 million incarnations the pool starts over, noticed like any other loss."""
    await index.apply([Change("pool", "a", forget=True, add=CHAIN)])
    await raw(index, "HSET", keys_of(index)["state"], "last", 2**24 - 16)
    with pytest.raises(IndexLost):
        await index.apply([Change("pool", "a", add=[1])])
    await index.apply([Change("pool", "a", forget=True, add=CHAIN[:6])])
    assert await index.match("pool", CHAIN) == {"a": 6}
