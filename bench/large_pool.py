"""A decision in pools of 32 to 4,096 instances: `python -m bench.large_pool`. The index in memory and the policy.

Each instance holds 1,000 prompt blocks, of which all share 40; the request is a follow-up of one of them.
"""

from __future__ import annotations

import asyncio
import random

from bench.profile import ms_each
from extproc.app.memory import resident
from extproc.base.model import Instance
from extproc.index import Change
from extproc.index.memory import MemoryIndex
from extproc.prompts.renderer import PlainRenderer
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Query
from extproc.routing.route_settings import RouteSettings
from extproc.routing.router import Router

SIZES = (32, 1024, 4096)
SHARED, OWN = 40, 960  # blocks


async def measure(size: int) -> None:
    """Print one line."""
    rng, index, before = random.Random(1), MemoryIndex(), resident()
    shared, own = [rng.getrandbits(64) for _ in range(SHARED)], list[int]()
    pool = Pool("pool", PlainRenderer())
    pool.instances = [Instance(f"10.0.{number // 256}.{number % 256}:8000") for number in range(size)]
    for instance in pool.instances:
        own = [rng.getrandbits(64) for _ in range(OWN)]
        await index.apply([Change("pool", instance.name, add=[*shared, *own])])
    entry = (resident() - before) / (size * (SHARED + OWN))
    router, route = Router(index, Loads()), RouteSettings("pool")
    query = Query(3, 250_000, 256_000, [*shared, *own])
    held = await index.match("pool", query.chain)

    def match() -> None:
        with_nothing_to_wait_for = index.match("pool", query.chain)
        try:
            with_nothing_to_wait_for.send(None)
        except StopIteration:
            return

    def decide() -> None:
        router.decide(pool, route, query, held, now=0.0).ticket.release()

    print(f"{size:>10}{entry:>10.0f}{ms_each(match, 0.5) * 1000:>10.0f}{ms_each(decide, 0.5):>10.2f}")


def main() -> None:
    """Print the table."""
    print(f"{'instances':>10}{'B/entry':>10}{'match us':>10}{'policy ms':>10}")
    for size in SIZES:
        asyncio.run(measure(size))


if __name__ == "__main__":
    main()
