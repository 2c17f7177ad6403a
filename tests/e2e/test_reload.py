"""The Envoy YAML is edited while agents work: no request is lost, and what is known stays known."""

from __future__ import annotations

import os
import signal

import pytest
import yaml

from loadgen.stack.parts import get
from loadgen.stack.stack import MEMORY, REDIS, Stack
from tests.e2e.test_failures import steadily
from tests.support.agents import WORD, chat, decision, loads, post, until
from tests.support.routers import hit


def configured(stack: Stack, engines: list[int], **cluster: object) -> None:
    """Another edit of the file: these engines, and more keys of their cluster's metadata."""
    tree = yaml.safe_load(stack.envoy_yaml.with_suffix(".first").read_text())
    (found,) = (one for one in tree["static_resources"]["clusters"] if one["name"] == "engines")
    endpoints = found["load_assignment"]["endpoints"][0]["lb_endpoints"]
    found["load_assignment"]["endpoints"][0]["lb_endpoints"] = [endpoints[number] for number in engines]
    found["metadata"]["filter_metadata"]["smetric"] |= cluster
    stack.envoy_yaml.write_text(yaml.dump(tree))
    hang_up(stack)


def hang_up(stack: Stack) -> None:
    assert stack.extproc is not None
    os.kill(stack.extproc.pid or 0, signal.SIGHUP)


def instances(stack: Stack) -> dict[str, str]:
    """The events' state of each engine that the router knows."""
    pools = stack.state().get("pools", {})
    return {name: one["events"]["state"] for pool in pools.values() for name, one in pool["instances"].items()}


@pytest.mark.parametrize("index", [MEMORY, REDIS])
async def test_edits_under_load(index: str) -> None:
    """Engines leave and return, a wrong edit, another model's name, another block size: every request is answered, the
    loads end at zero, and a session that was there before goes on where its cache is."""
    with Stack(engines=3, index=index, workers=2 if index == REDIS else 1) as stack:
        stack.envoy_yaml.rename(stack.envoy_yaml.with_suffix(".first"))
        question = [("system", f"a session {WORD * 40}"), ("user", "begin")]
        first = await post(stack, chat(*question))
        names = [engine.address for engine in stack.engines]

        async def edits() -> None:
            configured(stack, [0, 1])
            await until(lambda: instances(stack).keys() == set(names[:2]), 20)
            stack.envoy_yaml.write_text("static_resources: {clusters: [")
            hang_up(stack)
            await until(lambda: "refused" in stack.state()["configuration"], 20)
            assert instances(stack).keys() == set(names[:2])
            configured(stack, [0, 1, 2], models=["tiny", "another"])
            await until(lambda: instances(stack) == dict.fromkeys(names, "exact"), 20)
            assert "refused" not in stack.state()["configuration"]

        answers = await steadily(stack, 200, edits)
        assert {answer.status for answer in answers} == {200}
        follow_up = await post(stack, chat(*question, ("assistant", "yes"), ("user", "go on")))
        made = await decision(stack, follow_up)
        assert (made["reason"], follow_up.engine) == ("stick", first.engine)
        await until(lambda: sum(loads(stack)) == 0, 20)


async def test_a_pool_whose_prompts_look_different_is_made_anew() -> None:
    """Another block size: what was cached is known again, in the new blocks, without a restart of anything."""
    with Stack(engines=2) as stack:
        stack.envoy_yaml.rename(stack.envoy_yaml.with_suffix(".first"))
        question = [("system", f"a session {WORD * 40}"), ("user", "begin")]
        first = await post(stack, chat(*question))
        configured(stack, [0, 1], prompt_block_bytes=64)
        await until(
            lambda: b'smetric_reloads_total{outcome="applied"} 1.0' in (get(f"{stack.metrics_url}/metrics") or b"")
        )
        follow_up = chat(*question, ("assistant", "yes"), ("user", "go on"))
        (engine,) = (one for one in stack.engines if one.address == first.engine)
        await until(lambda: hit(stack, engine, follow_up) > 0, 20)
        answer = await post(stack, follow_up)
        made = await decision(stack, answer)
        assert (made["block_bytes"], made["reason"], answer.engine) == (64, "stick", first.engine)
