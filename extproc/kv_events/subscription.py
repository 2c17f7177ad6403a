"""Following one instance: its sockets, the feed that reads them, and the index that gets the changes.

It moves bytes; `feed.py` says what they mean. What it guards:

- Decisions may share the loop. All instances of a pool take turns in slices of `SLICE` seconds.
- The index may be slow, away or emptied. Then the mirror goes on and changes are dropped. When the index is
  back, everything that the mirror holds is rewritten; until then the instance is `unknown`.
- Nothing ends the following of an instance. What cannot be used is counted, and logged once for each cause; a bug is
  logged, and the instance begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from extproc.base.errors import IndexUnavailable
from extproc.base.facts import Fact
from extproc.base.model import EventReport, Instance, Knowledge
from extproc.index import Change, Index
from extproc.kv_events import reachability
from extproc.kv_events.engines import Decode, frames
from extproc.kv_events.feed import Feed
from extproc.kv_events.mirror import Delta, Mirror
from extproc.kv_events.replay_turns import ReplayTurns
from extproc.kv_events.sockets import Context, SocketError, Sockets
from extproc.kv_events.telemetry import Telemetry

SLICE = 0.002  # seconds of work until others get their turn
INDEX_RETRY = 1.0  # seconds until an index that failed is tried again
KEYS_AT_ONCE = 4096  # when everything is rewritten
TURN = 1.0  # seconds until whoever waits for its turn of a replay looks whether somebody does without one
RESTART = 1.0  # seconds until a subscription begins anew after a bug, doubled each time
LONGEST_RESTART = 60.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What all subscriptions of a pool share."""

    pool: str
    index: Index
    decode: Decode
    new_mirror: Callable[[], Mirror]
    context: Context
    tell: Callable[[str, Fact], None]
    turn: asyncio.Lock
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    replays: ReplayTurns = field(default_factory=ReplayTurns)


class Subscription:
    """One instance's sockets, and the feed between them and the index."""

    def __init__(self, instance: Instance, setup: Setup) -> None:
        self.instance = instance
        self._setup = setup
        self._labels = (setup.pool, instance.name)
        self._telemetry = Telemetry(*self._labels)
        self._sockets = Sockets(setup.context, str(instance.kv_events), instance.kv_replay)
        self._woken = asyncio.Event()
        self._state = Knowledge.UNKNOWN
        self._since = setup.clock()  # when it came to be in this state
        self._applied: tuple[int, float] | None = None  # number of the newest batch, and when it was applied
        self._looking: asyncio.Task[None] | None = None
        self._begin()

    def _begin(self) -> None:
        can_replay = self.instance.kv_replay is not None
        self._feed = Feed(self._setup.decode, self._setup.new_mirror(), rank=self.instance.rank, can_replay=can_replay)
        self._connected = False
        self._cause = ""  # why the events or their replay are out of reach
        self._look_at = self._setup.clock() + reachability.UNREACHED_S  # when to find out, unless they are reached
        self._lost = True  # whether routers must hear that nothing guessed before counts
        self.tell_all()

    @property
    def report(self) -> EventReport:
        now = self._setup.clock()
        silent_s = None if self._applied is None else now - self._applied[1]
        return EventReport(
            self._knowledge, self._feed.sequence, self._feed.lag, self._cause, now - self._since, silent_s
        )

    @property
    def waits_for_replay(self) -> bool:
        """For its turns of replays."""
        return self._feed.replaying

    def wake(self) -> None:
        """There may be something to do although nothing comes."""
        self._woken.set()

    @property
    def _knowledge(self) -> Knowledge:
        return Knowledge.UNKNOWN if self._untold else self._feed.knowledge

    def tell_all(self) -> None:
        """The index may not have what the mirror holds: rewrite everything."""
        self._untold = True
        self._tell_at = self._setup.clock()
        self._woken.set()

    def check(self) -> None:
        """To be called now and then: gives a peer up that fills memory with a message that does not end."""
        if self._sockets.check():
            self._woken.set()

    def remove_metrics(self) -> None:
        """The instance is followed no more."""
        self._telemetry.remove()

    async def run(self) -> None:
        """Follow until cancelled."""
        pause = RESTART
        while True:
            started = self._setup.clock()
            try:
                with self._sockets.opened():
                    await self._follow()
            except SocketError as error:
                self._telemetry.complain("socket", str(error))
            except Exception:
                self._telemetry.bug()
            finally:
                self._setup.replays.give_back(self)
                if self._looking is not None:
                    self._looking.cancel()
            self._begin()
            self.show()
            if self._setup.clock() - started > LONGEST_RESTART:
                pause = RESTART
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_RESTART)

    async def _follow(self) -> None:
        while True:
            async with self._setup.turn:
                more = self._work(self._setup.clock() + SLICE)
            await self._tell()
            self._look()
            self.show()
            if more:
                await asyncio.sleep(0)
            else:
                await self._sockets.readable(self._woken, self._idle_time())

    def _work(self, until: float) -> bool:
        """Receive and apply until then. Returns whether there may be more."""
        feed = self._feed
        self._ask(self._setup.clock())
        while (now := self._setup.clock()) < until:
            if feed.step(self._setup.wall_clock()):
                self._ask(now)
            else:
                heard = self._receive(now)
                # After what has come, because it may be what was waited for.
                if not feed.tick(now) and not heard:
                    return False
        return True

    def _ask(self, now: float) -> None:
        """Ask for the replay that is wanted, if it is our turn; one whose turn is over is given up."""
        turns, start = self._setup.replays, self._feed.replay
        mine = turns.has(self) if start is None else turns.take(self, now)
        if not mine:
            self._sockets.end_replay()
        elif start is not None:
            self._sockets.ask(frames.request(start))
            self._feed.replay = None
        if start is not None:
            self._feed.asked(now)

    def _end_replay(self) -> None:
        self._sockets.end_replay()
        self._feed.replay = None
        self._setup.replays.give_back(self)

    def _receive(self, now: float) -> bool:
        """Take what has come: news of the connection first, then a message of each socket. Whether there was any."""
        heard = False
        while (connected := self._sockets.connection()) is not None:
            heard = True
            if connected:
                self._look_at = now
            elif self._connected:  # a port of something else ends each attempt: those do not count as a loss
                self._look_at = now + reachability.UNREACHED_S
            self._connected = connected
            if not connected:
                self._lost = True
                self._feed.disconnected(now)
                self._end_replay()
                while self._sockets.published() is not None:
                    pass  # of a connection that is gone; the next one begins with a replay of all there is
            else:
                self._feed.connected(now)
        if (message := self._sockets.published()) is not None:
            heard = True
            self._feed.heard(message, now)
        if (message := self._sockets.replayed()) is not None:
            heard = True
            if self._feed.replayed(message, now):
                self._end_replay()
        return heard

    @property
    def _reached(self) -> bool:
        """Whether events come, and a replay where one was asked for."""
        return self._connected and not self._feed.unanswered

    def _look(self) -> None:
        """Have found out what is out of reach for so long, and why."""
        now = self._setup.clock()
        if self._reached:
            if self._cause:
                self._cause, self._look_at = "", now
                self._telemetry.reached()
        elif now >= self._look_at:
            self._look_at = now + reachability.AGAIN_S
            self._looking = asyncio.create_task(self._find_out(connected=self._connected))

    async def _find_out(self, *, connected: bool) -> None:
        if connected:
            cause = await reachability.why_no_replay(str(self.instance.kv_replay))
        else:
            cause = await reachability.why_no_events(str(self.instance.kv_events), bound=self._sockets.bound)
        if not self._reached and connected is self._connected:
            self._cause = cause
            self._telemetry.unreached(cause, replay=connected)

    def _idle_time(self) -> float | None:
        """Seconds until there is something to do although nothing comes."""
        look_at = None if self._reached else self._look_at
        now = self._setup.clock()
        turn_at = None if self._feed.replay is None else now + TURN
        times = (self._feed.deadline, self._tell_at if self._untold else None, look_at, turn_at)
        due = min((time for time in times if time is not None), default=None)
        return None if due is None else max(0.0, due - now)

    async def _tell(self) -> None:
        """Bring the index up to date."""
        delta = self._feed.drain()
        changes: Iterable[Change] = ()
        if self._untold:
            if self._setup.clock() >= self._tell_at:
                changes = self._everything()
        elif delta.forget or delta.remove or delta.add or delta.adapters is not None:
            changes = [Change(*self._labels, delta.forget, delta.remove, delta.add, delta.adapters)]
        lost = delta.forget or self._lost or self._untold
        try:
            for change in changes:
                await self._setup.index.apply([change])
        except IndexUnavailable:
            self.tell_all()
            self._tell_at += INDEX_RETRY
            return
        if self._untold:
            self._lost = True  # what is said meanwhile is not in the index
        elif lost or delta.stored:
            self._lost = False
            self._speak(lost, delta)

    def _speak(self, lost: bool, delta: Delta) -> None:
        """Tell the routers what the index was just told. All of it counts as said when its newest part was."""
        age_s = 0.0 if lost else max(0.0, self._setup.wall_clock() - self._feed.said)
        self._setup.tell(self._setup.pool, Fact(self.instance.name, lost, delta.stored, delta.span, age_s))

    def _everything(self) -> Iterator[Change]:
        self._untold = False  # until something goes wrong
        held, adapters = self._feed.everything()
        yield Change(*self._labels, forget=True, adapters=adapters)
        for start in range(0, len(held), KEYS_AT_ONCE):
            yield Change(*self._labels, add=held[start : start + KEYS_AT_ONCE])

    def show(self) -> None:
        """Bring what operators see up to date."""
        now, state, sequence = self._setup.clock(), self._knowledge, self._feed.sequence
        if state is not self._state:
            self._state, self._since = state, now
        if sequence >= 0 and (self._applied is None or sequence != self._applied[0]):
            self._applied = sequence, now
        self._telemetry.show(self._feed, self.report, connected=self._connected)
