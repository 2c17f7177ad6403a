"""Calls to one Redis within time budgets: they fail fast while it is away, and recover by themselves; one error.

It owns the judgement whether Redis is there, and has `standing.py` tell it. It knows nothing of what is stored:
`index/redis.py`, `leases.py` and `load_exchange.py` do.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from redis.asyncio import RedisCluster
from redis.exceptions import ClusterDownError, RedisClusterException, RedisError, ResponseError

from extproc.base import metrics
from extproc.base.errors import IndexUnavailable
from extproc.shared_state import refusals
from extproc.shared_state.connections import CONNECT_S, Client, give_up_idle
from extproc.shared_state.refusals import Cause, Refusal
from extproc.shared_state.standing import Standing, Use, with_redis

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

PROBE_S = 0.25  # between two looks whether Redis is back
# Failing for so long without any success means that Redis is away. A shorter break (a fork, a failover within a
# proxy) fails the calls that it hits and no others: a decision without the index costs an engine a whole prefill.
PATIENCE_S = 0.25


class Link:
    """Runs calls on a client within their budgets, a few at a time; while Redis is away it refuses them at once."""

    def __init__(self, client: Client, slots: int, namespace: str) -> None:
        self._client = client
        self.standing = with_redis(client, namespace)
        self._slots = asyncio.Semaphore(slots)
        self._width = slots
        self._looked = asyncio.Event()  # whether `_there` says anything
        self._there = False
        self._failing_since: float | None = None
        self._probe: asyncio.Task[None] | None = None
        self._moves = self.standing.moves

    async def run(self, name: str, budget_s: float, call: Callable[[Client], Awaitable[_T]], pool: str = "") -> _T:
        """The result of `call`. Raises IndexUnavailable, counted under `name`, and nothing else."""
        loop = asyncio.get_running_loop()
        try:
            async with _Budget(budget_s):
                await self._connected()
                if self._moves != self.standing.moves:
                    self._moves = self.standing.moves
                    await give_up_idle(self._client)
                async with self._slots:
                    result = await call(self._client)
        except IndexUnavailable:
            metrics.INDEX_ERRORS.labels(name, "away").inc()
            raise
        except TimeoutError as error:
            self._failed(loop.time(), "it does not answer")
            metrics.INDEX_ERRORS.labels(name, "timeout").inc()
            raise IndexUnavailable(f"Redis did not answer {name} within {budget_s * 1e3:g} ms") from error
        except ResponseError as error:  # Redis is there, and refuses
            refusal = refusals.read(error) or Refusal(Cause.OTHER, str(error))
            self.standing.refuses(Use(name, pool), refusal, loop.time())
            metrics.INDEX_ERRORS.labels(name, refusal.cause).inc()
            raise IndexUnavailable(f"Redis refused {name}: {refusal.words}") from error
        except (RedisError, RedisClusterException, OSError) as error:
            self._failed(loop.time(), _why(error), refusals.read(error))
            metrics.INDEX_ERRORS.labels(name, _cause(error)).inc()
            raise IndexUnavailable(f"Redis could not be reached for {name}: {error}") from error
        except Exception as error:
            _log.exception("a bug in index call %s", name)
            metrics.INDEX_ERRORS.labels(name, "bug").inc()
            raise IndexUnavailable(f"{name} failed: {error}") from error
        self._failing_since = None
        if self.standing.refused:
            self.standing.allows(Use(name, pool), loop.time())
        return result

    async def close(self) -> None:
        """Stop looking for Redis; the client is not closed."""
        if self._probe is not None:
            self._probe.cancel()
            with suppress(asyncio.CancelledError):
                await self._probe
        self.standing.forget(self)

    async def _connected(self) -> None:
        """Only the first calls wait for a connection; while Redis is known to be away, calls are refused."""
        if not self._looked.is_set():
            self._look()
            await self._looked.wait()
        if not self._there:
            raise IndexUnavailable(f"Redis at {self.standing.where} is away")

    def _failed(self, now: float, why: str, refusal: Refusal | None = None) -> None:
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= PATIENCE_S and self._there:
            self._there = False
            self.standing.away(self, why, refusal)
            self._look()

    def _look(self) -> None:
        if self._probe is None or self._probe.done():
            self._probe = asyncio.get_running_loop().create_task(self._until_there())

    async def _ask(self) -> Sequence[BaseException]:
        """What says that it is not there, or of no use."""
        errors = await self._ping(1)  # one is enough to learn why it is away
        errors = errors or await self._ping(self._width)
        if not errors and isinstance(self._client, RedisCluster):
            # Its nodes answer a PING also where too few of them are left to serve all slots.
            info = await self._client.cluster_info(target_nodes=self._client.get_default_node())
            if info.get("cluster_state") != "ok":
                errors = [ClusterDownError("CLUSTERDOWN cluster_state:fail")]
        return errors

    async def _ping(self, times: int) -> Sequence[BaseException]:
        pings = (self._client.execute_command("PING") for _ in range(times))
        results = await asyncio.gather(*pings, return_exceptions=True)
        return [one for one in results if isinstance(one, BaseException) and not _is_there(one)]

    async def _until_there(self) -> None:
        """Open all connections ahead of the calls: their budgets may be shorter than a TLS handshake takes."""
        while True:
            try:
                async with asyncio.timeout(CONNECT_S):
                    errors = await self._ask()
            except TimeoutError:
                errors = [TimeoutError("it does not answer")]
            except (RedisError, RedisClusterException, OSError) as error:
                errors = [error]
            if not errors:
                break
            self.standing.away(self, _why(errors[0]), refusals.read(errors[0]))
            self._looked.set()
            await asyncio.sleep(PROBE_S)
        self.standing.back(self)
        self._there = True
        self._failing_since = None
        self._looked.set()


@contextmanager
def attempt_to_hear(standing: Standing, call: str) -> Iterator[None]:
    """Listening has no budget and no result. What Redis refuses is told and counted; calls say that it is away."""
    try:
        yield
    except ResponseError as error:
        refusal = refusals.read(error) or Refusal(Cause.OTHER, str(error))
        standing.refuses(Use(call), refusal, asyncio.get_running_loop().time())
        metrics.INDEX_ERRORS.labels(call, refusal.cause).inc()
    except (RedisError, OSError):  # a TimeoutError is an OSError
        pass


class _Budget:
    """`asyncio.timeout` that does not blame Redis when this process itself was busy as the time ran out.

    Then the answer may have arrived long ago, so the call gets a moment more to take it.
    """

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._timer = self._loop.call_later(self._budget_s, self._due, self._loop.time() + self._budget_s)

    async def __aexit__(self, *exception: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(*exception)

    def _due(self, when: float) -> None:
        now = self._loop.time()
        if now - when > 0.002:
            self._timer = self._loop.call_later(0.002, self._timeout.reschedule, now)
        else:
            self._timeout.reschedule(now)


def _is_there(error: BaseException) -> bool:
    """Whether a server answers a PING so that lets us do all else: without the right to PING, or with a full disk."""
    refusal = refusals.read(error)
    return refusal is not None and (
        refusal.cause is Cause.CANNOT_SAVE or (refusal.cause is Cause.NO_RIGHTS and "'ping'" in refusal.words)
    )


def _cause(error: BaseException) -> str:
    refusal = refusals.read(error)
    return refusal.cause if refusal else "connection"


def _why(error: BaseException) -> str:
    """The cause that redis-py wraps, in few words."""
    cause = error.__cause__ or error.__context__ or error
    if isinstance(cause, socket.gaierror):
        return "its name does not resolve"
    if isinstance(cause, ConnectionRefusedError):
        return "it refuses connections"
    return str(error)
