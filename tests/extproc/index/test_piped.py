"""An index that another process writes: what arrives, in which order, and what is left when the writer ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from extproc.base.errors import IndexUnavailable
from extproc.base.facts import Fact
from extproc.base.model import EventReport, Knowledge
from extproc.index import Change, piped
from extproc.index.memory import MemoryIndex
from extproc.index.open import open_index
from extproc.index.piped import Inlet, PipedIndex

POOL, ENGINE = "engines", "10.0.0.1:8000"
CHAIN = tuple(range(10, 10_010))


class Router:
    """The index of a router, what it heard of engines, and the followers that were to be ended."""

    def __init__(self) -> None:
        self.index = MemoryIndex()
        self.inlet = Inlet()
        self.inlet.kill = lambda: self.killed.append(True)
        self.heard: list[Fact] = []
        self.held: list[int] = []  # blocks of CHAIN that were held when each fact came
        self.killed: list[bool] = []

    def hear(self, pool: str, fact: Fact) -> None:
        self.heard.append(fact)
        self.held.append(self.index._pools[pool].match(CHAIN).get(ENGINE, 0))

    def follower(self) -> PipedIndex:
        with self.inlet.new() as pipe:
            index = open_index(piped.PREFIX + str(pipe.detach()))  # as a child inherits it
        assert isinstance(index, PipedIndex)
        return index


@pytest.fixture
async def router() -> AsyncIterator[Router]:
    router = Router()
    task = asyncio.create_task(router.inlet.run(router.index, router.hear))
    yield router
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_change_arrives_whole(router: Router) -> None:
    """However many keys it has, with its adapters, and in its order: what is removed may be added again later."""
    follower = router.follower()
    await follower.apply([Change(POOL, ENGINE, forget=True, add=CHAIN, adapters=["lora"])])
    await follower.apply([Change(POOL, ENGINE, remove=CHAIN[:4_999:-1])])
    follower.tell(POOL, Fact(ENGINE))
    await until(lambda: bool(router.heard))
    assert await router.index.match(POOL, CHAIN) == {ENGINE: 5_000}
    assert router.index.adapters(POOL) == {"lora": {ENGINE}}
    await follower.close()


async def test_a_fact_comes_after_what_it_speaks_of(router: Router) -> None:
    """Else a router would end its guess before the index knows better. Its age is the word's, not the frame's."""
    follower = router.follower()
    for end in range(1_000, 10_001, 1_000):
        await follower.apply([Change(POOL, ENGINE, add=CHAIN[end - 1_000 : end])])
        follower.tell(POOL, Fact(ENGINE, stored=[CHAIN[end - 1]], span=3, age_s=7.0))
    await until(lambda: len(router.heard) == 10)
    assert router.held == list(range(1_000, 10_001, 1_000))
    assert [list(fact.stored) for fact in router.heard] == [[CHAIN[end - 1]] for end in router.held]
    assert {fact.span for fact in router.heard} == {3}
    assert all(fact.age_s >= 7.0 for fact in router.heard)
    await follower.close()


async def test_reports_arrive(router: Router) -> None:
    """With all that an operator is shown."""
    follower = router.follower()
    report = EventReport(Knowledge.EXACT, 7, 0.25, "a cause", 3.5, None)
    await follower.report(POOL, {ENGINE: report})
    await until(lambda: bool(router.index._reports))
    assert await router.index.reports(POOL) == {ENGINE: report}
    await follower.close()


async def test_nothing_is_left_of_a_follower_that_ended(router: Router) -> None:
    """What it missed from then on nobody knows: no hit, no guess, and `unknown` until another one has begun anew."""
    follower = router.follower()
    await follower.apply([Change(POOL, ENGINE, add=CHAIN)])
    await follower.report(POOL, {ENGINE: EventReport(Knowledge.EXACT, 7, 0.0)})
    await until(lambda: bool(router.index._reports))
    await follower.close()
    await until(lambda: bool(router.heard))
    assert router.heard == [Fact(ENGINE, lost=True)]
    assert await router.index.match(POOL, CHAIN) == {}
    assert await router.index.reports(POOL) == {}
    another = router.follower()
    await another.apply([Change(POOL, ENGINE, add=CHAIN[:3])])
    another.tell(POOL, Fact(ENGINE))
    await until(lambda: len(router.heard) == 2)
    assert await router.index.match(POOL, CHAIN) == {ENGINE: 3}
    await another.close()


async def test_one_that_hangs_is_ended(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stopped, or spins, keeps its pipe open: its engines go on without it."""
    monkeypatch.setattr(piped, "SILENCE_S", 0.3)
    follower = router.follower()
    await follower.apply([Change(POOL, ENGINE, add=CHAIN)])
    await until(lambda: bool(router.killed))
    assert await router.index.match(POOL, CHAIN) == {}
    with pytest.raises(IndexUnavailable):
        await _write_for_ever(follower)
    await follower.close()


async def _write_for_ever(follower: PipedIndex) -> None:
    while True:
        await follower.apply([Change(POOL, ENGINE, add=CHAIN)])
        await asyncio.sleep(0.05)


async def test_nonsense_ends_the_follower(router: Router) -> None:
    """Two versions of the code, or a stray byte: what would follow cannot be trusted either."""
    pipe = router.inlet.new()
    pipe.sendall(b"\0\0\0\x05hello")
    await until(lambda: bool(router.killed))
    pipe.close()


async def test_others_of_the_loop_get_their_turn(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many keys wait in the pipe: others run between any two frames once a slice of time is over."""
    monkeypatch.setattr(piped, "SLICE_S", 0.0)
    follower = router.follower()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    writing = asyncio.create_task(other())
    for start in range(0, 400_000, 100_000):
        await follower.apply([Change(POOL, ENGINE, add=range(start, start + 100_000))])
    follower.tell(POOL, Fact(ENGINE))
    await until(lambda: bool(router.heard))
    writing.cancel()
    assert (await router.index.sizes(POOL))[ENGINE] == 400_000
    assert turns >= 400_000 // piped.KEYS_A_FRAME
    await follower.close()


async def test_what_routers_write_themselves_does_not_come_by_this_way(router: Router) -> None:
    """The follower's process builds all parts of a node; guesses and routed prompts are the router's own."""
    follower = router.follower()
    await follower.apply([Change(POOL, ENGINE, add=CHAIN, writer="another")])
    await follower.report(POOL, {})
    follower.tell(POOL, Fact(ENGINE))
    await until(lambda: bool(router.heard))
    assert await router.index.match(POOL, CHAIN) == {}
    await follower.close()
