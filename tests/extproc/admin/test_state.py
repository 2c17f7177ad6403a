"""What /debug/state shows, and that the gauges say the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import generate_latest

from extproc.admin.state import UNHEARD, StatePage
from extproc.base import metrics
from extproc.base.errors import IndexUnavailable
from extproc.base.model import EventReport, Instance, Knowledge
from extproc.index import Change
from extproc.index.memory import MemoryIndex
from extproc.prompts.renderer import PlainRenderer
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool

NAMES = ("10.1.0.1:8000", "10.1.0.2:8000")
HEARD = EventReport(Knowledge.EXACT, 7, 0.1)


class Away(MemoryIndex):
    """An index that does not answer."""

    async def sizes(self, pool: str) -> Mapping[str, int]:
        raise IndexUnavailable("away")


def pools(index: MemoryIndex | None = None) -> tuple[StatePage, Pool, Loads, MemoryIndex]:
    index, loads = index or MemoryIndex(), Loads()
    events = [Instance(NAMES[0], kv_events="tcp://10.1.0.1:5557"), Instance(NAMES[1])]
    pool = Pool("state-pool", PlainRenderer(), instances=events)
    following = {"state-pool": {NAMES[0]: HEARD}}
    return StatePage({"state-pool": pool}, index, loads, following.get), pool, loads, index


async def read(page: StatePage) -> Mapping[str, Any]:
    told: Mapping[str, Any] = (await page.read(now=0.0))["pools"]["state-pool"]["instances"]
    return told


def gauges(*names: str) -> Sequence[str]:
    return [line for line in generate_latest(metrics.REGISTRY).decode().splitlines() if line.startswith(names)]


async def test_the_page_and_the_gauges_say_the_same() -> None:
    """Loads, blocks, events and health of each instance."""
    page, pool, loads, index = pools()
    loads.start("state-pool", NAMES[0], 10)
    await index.apply([Change("state-pool", NAMES[1], add=[1, 2, 3])])
    pool.unhealthy = frozenset({NAMES[1]})
    one, other = (await read(page)).values()
    assert (one["in_flight"], one["unprefilled_bytes"], one["index_blocks"]) == (1, 10, 0)
    assert (other["in_flight"], other["index_blocks"]) == (0, 3)
    assert (one["healthy"], other["healthy"]) == (True, False)
    assert (one["events"], other["events"]) == (HEARD, None)  # the other publishes none
    assert (one["kv_events"], other["kv_events"]) == ("tcp://10.1.0.1:5557", None)
    shown = "\n".join(gauges("smetric_in_flight", "smetric_index_blocks", "smetric_unhealthy"))
    assert f'smetric_in_flight{{instance="{NAMES[0]}",pool="state-pool"}} 1.0' in shown
    assert f'smetric_index_blocks{{instance="{NAMES[1]}",pool="state-pool"}} 3.0' in shown
    assert f'smetric_unhealthy{{instance="{NAMES[1]}",pool="state-pool"}} 1.0' in shown


async def test_how_we_stand_with_redis() -> None:
    """Shown where Redis is used, and absent elsewhere."""
    page, *_ = pools()
    assert "redis" not in await page.read(now=0.0)
    page.redis = lambda now: [{"redis": "h:1", "away": None, "refused": [{"last_s": now}]}]
    assert (await page.read(now=7.0))["redis"] == [{"redis": "h:1", "away": None, "refused": [{"last_s": 7.0}]}]


async def test_the_page_is_shown_while_the_index_is_away() -> None:
    """What is in flight is known all the same; what is cached is not, and nothing is made up."""
    page, _, loads, _ = pools(Away())
    loads.start("state-pool", NAMES[0], 10)
    one, _ = (await read(page)).values()
    assert (one["in_flight"], one["index_blocks"], one["events"]) == (1, None, UNHEARD)
