"""Reads every body: the small ones here and now, the others in processes beside the loop (`readers.py`).

Owns what is asked of those processes, and what becomes of a request that they cannot read in time: load alone decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from extproc.app.reader_job import Answer, Candidate, Job, PoolFacts, Question
from extproc.app.readers import BUDGET_S, OverBudget, Readers, command
from extproc.base.errors import TakesLong
from extproc.base.model import Reason
from extproc.config import PoolSettings
from extproc.requests.apis import models_named
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask, Query, pool_named
from extproc.routing.reading import MOST_US, Announcements, Reading, at_once

_ANSWERS = msgspec.msgpack.Decoder(Answer)


class LargeBodies:
    """The `routing.reading.Reader` of a process that serves. Must be made, used and closed in the event loop."""

    def __init__(self, pools: Iterable[PoolSettings], *, log_level: str = "info", budget_s: float = BUDGET_S) -> None:
        self._log_level = log_level
        self._budget_s = budget_s
        self._readers, self._names = self._started(pools)
        self._changing: asyncio.Task[None] | None = None

    def change(self, pools: Iterable[PoolSettings]) -> None:
        """These are the pools now, and their files may be others: as soon as other processes are ready for them."""
        if self._changing is not None:
            self._changing.cancel()
        self._changing = asyncio.create_task(self._change(list(pools)))

    async def read(self, pools: Sequence[Pool], announced: Announcements, ask: Ask) -> Reading:
        """As `Reader.read`."""
        try:
            return at_once(pools, announced, ask, MOST_US)
        except TakesLong:
            pass
        candidates = [_candidate(pool, announced) for pool in pools]
        likely = pool_named(pools, announced, models_named(ask.body or b""))
        unread = Reading(likely, Query(ask.turn or 0, degraded=Reason.BODY_TOO_COSTLY))
        if not self._names.issuperset(pool.name for pool in pools):
            return unread  # of a configuration that is being taken over

        def head(within_s: float) -> bytes:
            return msgspec.msgpack.encode(Question(candidates, ask.path, ask.turn, within_s))

        try:
            answer = _ANSWERS.decode(await self._readers.ask(head, ask.body or b""))
        except OverBudget:
            return unread
        return Reading(next(pool for pool in pools if pool.name == answer.pool), answer.query)

    async def close(self) -> None:
        """End the processes."""
        if self._changing is not None:
            self._changing.cancel()
            await asyncio.gather(self._changing, return_exceptions=True)
        await self._readers.close()

    async def _change(self, pools: Sequence[PoolSettings]) -> None:
        readers, names = self._started(pools)
        leaving = readers
        try:
            await readers.ready()
            leaving, self._readers, self._names = self._readers, readers, names
            await asyncio.sleep(self._budget_s)  # until nobody waits for them any more
        finally:
            await leaving.close()

    def _started(self, pools: Iterable[PoolSettings]) -> tuple[Readers, frozenset[str]]:
        facts = [_facts(pool) for pool in pools]
        job = msgspec.msgpack.encode(Job(facts, self._log_level))
        return Readers(command(), job, budget_s=self._budget_s), frozenset(each.name for each in facts)


def _facts(pool: PoolSettings) -> PoolFacts:
    model_dir = None if pool.model_dir is None else str(pool.model_dir)
    return PoolFacts(pool.name, model_dir, pool.models, pool.prompt_block_bytes)


def _candidate(pool: Pool, announced: Announcements) -> Candidate:
    adapters = dict(announced(pool.name))
    return Candidate(pool.name, pool.secret, adapters, pool.instances if adapters or pool.disaggregated else ())
