"""How this process stands with each Redis: is it away, and what of our calls does it refuse? Said once, until it ends.

Many connections of a process find out the same. Here it is told once, by the log and to `/debug/state`. A refusal ends
when the same call is let through for a while: at the edge of its memory Redis refuses and allows by turns. It knows
neither sockets nor budgets (`link.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from redis.asyncio import RedisCluster

from extproc.shared_state.connections import Client, where
from extproc.shared_state.refusals import Cause, Refusal, remedy

_log = logging.getLogger(__name__)

# Between two attempts to find the master behind the same address, where connections to the old one live on after a
# failover; doubled each time, because it may just as well be a replica for good.
MOVE_S: Final = 1.0
LONGEST_MOVE_S: Final = 60.0
_NO_MASTER: Final = (Cause.READ_ONLY, Cause.MASTER_DOWN)
CALM_S: Final = 10.0  # without a refusal, after which it has ended

# What each call is for, in words.
PURPOSES: Final = {
    "match": "look up prompts",
    "apply": "store blocks",
    "report": "report followers",
    "sizes": "show the state",
    "reports": "show the followers",
    "sweep": "sweep",
    "remember": "remember responses",
    "recall": "recall responses",
    "renew": "lease engines",
    "release": "give leases back",
    "publish_loads": "tell loads",
    "hear_loads": "hear loads",
    "publish_facts": "tell facts",
    "hear_facts": "hear facts",
    "secret": "read the secret of its keys",
    "keep_secret": "keep the secret of its keys",
}


class Use(NamedTuple):
    """What is asked of Redis: a call, and the pool that it is about, where it is about one."""

    call: str
    pool: str = ""

    def __str__(self) -> str:
        about = f" of pool {self.pool}" if self.pool else ""
        return f"{PURPOSES.get(self.call, self.call)}{about}"


@dataclass(slots=True)
class _Refused:
    refusal: Refusal
    since: float
    last: float


@dataclass(slots=True)
class Standing:
    """With one Redis. Times are in seconds, of one monotonic clock."""

    where: str
    namespace: str
    cluster: bool
    refused: dict[Use, _Refused] = field(default_factory=dict)
    moves: int = 0  # how often its address may have come to lead to another server: then connect anew
    _move_at: float = 0.0
    _move_s: float = MOVE_S
    _away: set[object] = field(default_factory=set)  # who found it away
    _why: str = ""
    _causes: set[Cause | None] = field(default_factory=set)  # said in this outage

    def away(self, who: object, why: str, refusal: Refusal | None) -> None:
        """It is not there, or refuses everything."""
        cause = refusal.cause if refusal else None
        self._why = refusal.words if refusal else why
        if cause not in self._causes:
            how = f"refuses us ({refusal.words}{self._help(refusal)})" if refusal else f"is away ({why})"
            _log.warning("Redis at %s %s; deciding by load until it is back", self.where, how)
        self._causes.add(cause)
        self._away.add(who)

    def back(self, who: object) -> None:
        """One that found it away finds it there."""
        if self.forget(who):
            _log.warning("Redis at %s is back", self.where)

    def forget(self, who: object) -> bool:
        """Whether it was the last one that found Redis away."""
        last = self._away == {who}
        self._away.discard(who)
        if last:
            self._causes.clear()
        return last

    def refuses(self, use: Use, refusal: Refusal, now: float) -> None:
        """It is there, and does not let us do this."""
        if refusal.cause in _NO_MASTER and now >= self._move_at:
            self.moves, self._move_at = self.moves + 1, now + self._move_s
            self._move_s = min(2 * self._move_s, LONGEST_MOVE_S)
        known = self.refused.get(use)
        if known is not None and known.refusal == refusal:
            known.last = now
            return
        said = any(use.call == other.call and refusal == one.refusal for other, one in self.refused.items())
        self.refused[use] = _Refused(refusal, now, now)
        if not said:
            _log.warning("Redis at %s refuses to %s: %s%s", self.where, use, refusal.words, self._help(refusal))

    def allows(self, use: Use, now: float) -> None:
        """It let us do this. Cheap where it refuses nothing; ask `refused` first."""
        known = self.refused.get(use)
        if known is None or now - known.last < CALM_S:
            return
        del self.refused[use]
        if not any(one.refusal.cause in _NO_MASTER for one in self.refused.values()):
            self._move_s = MOVE_S
        if not any(use.call == other.call and known.refusal == one.refusal for other, one in self.refused.items()):
            _log.warning("Redis at %s no longer refuses to %s: %s", self.where, use, known.refusal.words)

    def keep(self, pools: Collection[str]) -> None:
        """These are the pools from now on: what was refused of others will not be asked for again."""
        self.refused = {use: one for use, one in self.refused.items() if not use.pool or use.pool in pools}

    def shown(self, now: float) -> Mapping[str, Any]:
        """For `/debug/state`."""
        refused = [
            {
                "asked": PURPOSES.get(use.call, use.call),
                "pool": use.pool or None,
                "cause": one.refusal.cause,
                "said": one.refusal.words,
                "since_s": round(now - one.since, 1),
                "last_s": round(now - one.last, 1),
            }
            for use, one in self.refused.items()
        ]
        return {"redis": self.where, "away": self._why if self._away else None, "refused": refused}

    def _help(self, refusal: Refusal) -> str:
        helps = remedy(refusal.cause, namespace=self.namespace, cluster=self.cluster)
        return f"; {helps}" if helps else ""


_ALL: dict[tuple[str, str], Standing] = {}  # of this process, by address and namespace


def with_redis(client: Client, namespace: str) -> Standing:
    """The one of this address, for all who use it."""
    name = where(client), namespace
    if name not in _ALL:
        _ALL[name] = Standing(*name, cluster=isinstance(client, RedisCluster))
    return _ALL[name]


def shown(now: float) -> Sequence[Mapping[str, Any]]:
    """Of every Redis that this process uses."""
    return [standing.shown(now) for standing in _ALL.values()]
