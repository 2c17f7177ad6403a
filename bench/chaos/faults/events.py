"""One engine's events come from a hostile peer: they flood, lie, break off, never end."""

from __future__ import annotations

from collections.abc import AsyncIterator

from bench.chaos.faults.fault import Table
from bench.chaos.world import World
from loadgen.stack.processes import free_port

FAULTS = Table()


def _hostile(name: str, attack: str, about: str) -> None:
    async def follows(world: World) -> AsyncIterator[None]:
        engine, port = world.any_engine(), free_port()
        async with world.attacked(attack, port=port):
            world.pool.write(world.pool.of(engine, kv_events=f"tcp://127.0.0.1:{port}", kv_replay=None))
            try:
                yield
            finally:
                world.pool.restore()

    follows.__doc__ = about
    FAULTS(name)(follows)


_hostile("event-flood", "flood", "an engine announces blocks as fast as they are taken, sixteen a message")
_hostile("event-singles", "single", "the same, each block in a message of its own")
_hostile("event-heavy", "heavy", "events of a million token ids, of a quarter of a million hashes, of 20,000 blocks")
_hostile("event-garbage", "garbage", "bytes by chance instead of events")
_hostile("event-nonsense", "nonsense", "well-formed events that mean nothing, with numbers that jump and fall")
_hostile("event-endless", "endless", "a message that never ends")


def _lossy(name: str, about: str, *, replays: bool) -> None:
    async def loses(world: World) -> AsyncIterator[None]:
        engine, port = world.any_engine(), free_port()
        own = f"tcp://127.0.0.1:{engine.events_port}"
        changed = {"kv_events": f"tcp://127.0.0.1:{port}"} | ({} if replays else {"kv_replay": None})
        async with world.attacked("losses", port=port, engine=own, seed=world.rng.random()):
            world.pool.write(world.pool.of(engine, **changed))
            try:
                yield
            finally:
                world.pool.restore()

    loses.__doc__ = about
    FAULTS(name)(loses)


_lossy("event-gaps", "of an engine's messages one in five is lost and one in five comes twice", replays=True)
_lossy("event-losses", "the same, and no replay closes the gaps", replays=False)
