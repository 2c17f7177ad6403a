"""A cluster with a failover level, through a real Envoy: it serves while the first level cannot, and no longer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
import yaml

from loadgen.stack.stack import Stack
from tests.support.agents import WORD, chat, post
from tests.support.envoy_yaml import Yaml, cluster


@pytest.fixture
def stack() -> Iterator[Stack]:
    """Four engines, the last two of priority 1."""
    made = Stack(engines=4, engine_options=["--time-scale", "0.05"])
    tree: Yaml = yaml.safe_load(made.envoy_yaml.read_text("utf-8"))
    assignment = cluster(tree, "engines")["load_assignment"]
    hosts = assignment["endpoints"][0]["lb_endpoints"]
    assignment["endpoints"] = [{"lb_endpoints": hosts[:2]}, {"priority": 1, "lb_endpoints": hosts[2:]}]
    made.envoy_yaml.write_text(yaml.dump(tree, sort_keys=False), "utf-8")
    with made as running:
        yield running


async def served(stack: Stack, name: str, count: int = 8) -> list[int]:
    """How many of so many sessions' first requests each engine answered."""
    answers = [await post(stack, chat(("user", f"{name} {number} {WORD * 30}"))) for number in range(count)]
    assert {answer.status for answer in answers} == {200}
    engines = Counter(answer.engine for answer in answers)
    return [engines[engine.address] for engine in stack.engines]


async def test_a_failover_level_serves_only_while_it_must(stack: Stack) -> None:
    """Nobody of priority 1 while one of priority 0 can; all of them when none can; and back when one returns."""
    assert await served(stack, "all are there") == [4, 4, 0, 0]
    states = next(iter(stack.state()["pools"].values()))["instances"]
    assert [states[engine.address].get("priority", 0) for engine in stack.engines] == [0, 0, 1, 1]
    stack.engines[0].kill()
    assert (await served(stack, "one is dead"))[2:] == [0, 0]
    stack.engines[1].kill()
    assert sum((await served(stack, "the first level is dead"))[2:]) == 8
    stack.engines[1].start()

    async with asyncio.timeout(60):  # an ejected host is tried again after five seconds, then after ten
        while not (await served(stack, "one is back", 1))[1]:
            await asyncio.sleep(0.25)
    assert (await served(stack, "and takes all"))[1] == 8
