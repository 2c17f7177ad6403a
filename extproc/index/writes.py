"""Writes of one router to one pool in Redis: few round trips, each write once, never on top of what is lost.

Followers write thousands of small changes, and each waits for its own. What they ask for during one round trip is
collected and makes the next.

Every write carries the name of its owner and a number that only rises (`apply.lua`). So a write runs once however often
it was sent; one that Redis reads late (it was stopped, another connection was faster) is ignored; and a writer whose
entries are gone, or now another's, is told so instead of adding to them: after FLUSHALL, an
eviction, a restart from an old snapshot, a failover that dropped acknowledged writes, a takeover by another follower.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from extproc.base.errors import IndexUnavailable
from extproc.index import MAX_ADAPTERS, Change
from extproc.index.redis_names import holder_of, pack_names
from extproc.shared_state.connections import Client
from extproc.shared_state.link import Link
from extproc.shared_state.script import Argument, Script

KEYS_A_CALL = 512  # about half a millisecond of Redis, in which nothing else is served
CALLS_A_ROUND = 32  # pipelined, under one budget


class Author:
    """One process as an owner of what it wrote."""

    def __init__(self) -> None:
        self.name = secrets.token_bytes(8)
        self._numbers = itertools.count(1)

    def next(self) -> int:
        """The number of the next write."""
        return next(self._numbers)

    def owner(self, number: int) -> bytes:
        """The owner's name of what this write took possession of."""
        return self.name + number.to_bytes(8, "big")


class Possession(NamedTuple):
    """What Redis must say of a holder for our writes to it to be still there."""

    owner: bytes
    acknowledged: int  # number of the newest write that Redis confirmed


NOTHING = Possession(b"", 0)


class _Piece(NamedTuple):
    """A part of a change that is small enough for one call."""

    instance: str
    holder: bytes
    forget: bool
    remove: Sequence[int]
    add: Sequence[int]
    adapters: Sequence[str] | None


class _Waiting(NamedTuple):
    pieces: Sequence[_Piece]
    lost: asyncio.Future[frozenset[str]]


class Writes:
    """The writes to one pool. `keys` are the pool's."""

    def __init__(
        self,
        link: Link,
        script: Script,
        author: Author,
        keys: Sequence[str],
        *,
        pool: str,
        budget_s: float,
        retention_s: float,
    ) -> None:
        self._link = link
        self._pool = pool
        self._script = script
        self._author = author
        self._keys = keys
        self._budget_s = budget_s
        self._retention_ms = int(retention_s * 1000)
        self._possessions: dict[bytes, Possession] = {}
        self._waiting: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None

    def possession(self, holder: bytes) -> Possession:
        """Ours of a holder; NOTHING where we never wrote."""
        return self._possessions.get(holder, NOTHING)

    async def apply(self, changes: Iterable[Change]) -> frozenset[str]:
        """Write in order, after all that was asked for before; returns the instances whose writes were refused.

        Raises IndexUnavailable after the budgets of two round trips at most for each CALLS_A_ROUND calls.
        """
        pieces, lost = _pieces(changes), frozenset[str]()
        while some := list(itertools.islice(pieces, CALLS_A_ROUND)):
            waiting = _Waiting(some, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._write_all())
            lost = (lost - {piece.instance for piece in some if piece.forget}) | await waiting.lost
        return lost

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._task is not None:
            await self._task

    async def _write_all(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft()]
            size = len(batch[0].pieces)
            while self._waiting and size + len(self._waiting[0].pieces) <= CALLS_A_ROUND:
                batch.append(self._waiting.popleft())
                size += len(batch[-1].pieces)
            try:
                lost = await self._link.run("apply", self._budget_s, partial(self._write, batch), self._pool)
            except IndexUnavailable as error:
                for waiting in (*batch, *self._waiting):
                    if not waiting.lost.done():
                        waiting.lost.set_exception(_again(error))
                self._waiting.clear()
                continue
            for waiting, instances in zip(batch, lost, strict=True):
                if not waiting.lost.done():  # its writer may have given up waiting
                    waiting.lost.set_result(instances)

    async def _write(self, batch: Sequence[_Waiting], client: Client) -> list[frozenset[str]]:
        """One round trip; what each of the batch lost."""
        pieces = [piece for waiting in batch for piece in waiting.pieces]
        after: list[Possession] = []
        newest: dict[bytes, Possession] = {}
        calls: list[Sequence[Argument]] = []
        for piece in pieces:
            number = self._author.next()
            before = newest.get(piece.holder) or self.possession(piece.holder)
            takes = piece.forget or before is NOTHING
            possession = Possession(self._author.owner(number) if takes else before.owner, number)
            newest[piece.holder] = possession
            after.append(possession)
            who: list[Argument] = [piece.holder, *before, number, self._author.owner(number), int(piece.forget)]
            what: list[Argument] = [pack(piece.remove), pack(piece.add), self._retention_ms]
            if piece.adapters is not None:
                what.append(pack_names(piece.adapters[-MAX_ADAPTERS:]))
            calls.append((*self._keys, *who, *what))
        answers = await self._script.run_all(client, calls)
        outcomes = iter(zip(pieces, after, answers, strict=True))
        return [self._confirm(itertools.islice(outcomes, len(waiting.pieces))) for waiting in batch]

    def _confirm(self, outcomes: Iterable[tuple[_Piece, Possession, int]]) -> frozenset[str]:
        lost: set[str] = set()
        for piece, possession, answer in outcomes:
            if answer < 0:
                lost.add(piece.instance)
                continue
            self._possessions[piece.holder] = possession
            if piece.forget:
                lost.discard(piece.instance)
        return frozenset(lost)


def pack(keys: Sequence[int]) -> bytes:
    """Keys as the scripts read them: 8 bytes each."""
    return struct.pack(f"<{len(keys)}Q", *keys)


def _pieces(changes: Iterable[Change]) -> Iterator[_Piece]:
    for change in changes:
        if not (change.forget or change.remove or change.add or change.adapters is not None):
            continue
        remove, add = list(dict.fromkeys(change.remove)), list(dict.fromkeys(change.add))
        parts = [(remove, add)]
        if len(remove) + len(add) > KEYS_A_CALL:
            parts = [(remove[i : i + KEYS_A_CALL], []) for i in range(0, len(remove), KEYS_A_CALL)]
            parts += [([], add[i : i + KEYS_A_CALL]) for i in range(0, len(add), KEYS_A_CALL)]
        holder = holder_of(change.instance, change.writer)
        yield _Piece(change.instance, holder, change.forget, *parts[0], change.adapters)
        for part in parts[1:]:
            yield _Piece(change.instance, holder, False, *part, None)


def _again(error: IndexUnavailable) -> IndexUnavailable:
    """The same for another caller, with what Redis said."""
    copy = IndexUnavailable(*error.args)
    copy.__cause__ = error.__cause__
    return copy
