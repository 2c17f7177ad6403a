"""Every API through a real Envoy: sessions stay, ids and models steer, and nobody complains."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from loadgen.stack.stack import REDIS, Stack
from tests.support.agents import WORD, Answer, chat, complaints, decision, get, loads, post, until

COMPLETIONS, MESSAGES, RESPONSES = "/v1/completions", "/v1/messages", "/v1/responses"
LONG = WORD * 60
TOOL = {"type": "object", "properties": {"path": {"type": "string"}}}

Yaml = dict[str, Any]


def changed(stack: Stack, change: Callable[[Yaml, Yaml], None]) -> Stack:
    """Change the configuration of a stack before it starts; `change` gets the whole and the ext_proc filter."""
    root: Yaml = yaml.safe_load(stack.envoy_yaml.read_text("utf-8"))
    (found,) = (f["typed_config"] for f in manager(root)["http_filters"] if f["name"].endswith("ext_proc"))
    change(root, found)
    stack.envoy_yaml.write_text(yaml.dump(root, sort_keys=False), "utf-8")
    return stack


def manager(root: Yaml) -> Yaml:
    found: Yaml = root["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def hides_responses(_: Yaml, ext_proc: Yaml) -> None:
    del ext_proc["allow_mode_override"]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(engines=3) as running:
        yield running


async def ask(stack: Stack, path: str, **body: Any) -> Answer:
    return await post(stack, json.dumps({"temperature": 0, **body}).encode(), path=path)


def messages(turns: list[tuple[str, str]], **more: Any) -> Yaml:
    said = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]
    tools = [{"name": "read", "input_schema": TOOL}]
    return {"model": "tiny", "max_tokens": 8, "system": LONG, "messages": said, "tools": tools, **more}


def responses(turns: list[tuple[str, str]], **more: Any) -> Yaml:
    kinds = {"user": "input_text", "assistant": "output_text"}
    items = [
        {"type": "message", "role": role, "content": [{"type": kinds[role], "text": text}]} for role, text in turns
    ]
    tools = [{"type": "function", "name": "read", "parameters": TOOL}]
    body = {"max_output_tokens": 8, "instructions": LONG, "input": items, "tools": tools, "store": False}
    return {**body, **more}


def completions(turns: list[tuple[str, str]], **more: Any) -> Yaml:
    said = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in [("system", LONG), *turns])
    return {"max_tokens": 8, "prompt": said + "<|im_start|>assistant\n", **more}


def text_of(path: str, answer: Any) -> str:
    if path == COMPLETIONS:
        return str(answer["choices"][0]["text"])
    content = answer["content"] if path == MESSAGES else answer["output"][0]["content"]
    return str(content[0]["text"])


def cached_of(path: str, usage: Any) -> int:
    if path == MESSAGES:
        return int(usage["cache_read_input_tokens"])
    return int(usage["prompt_tokens_details" if path == COMPLETIONS else "input_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize(
    ("path", "body"), [(COMPLETIONS, completions), (MESSAGES, messages), (RESPONSES, responses)], ids=str
)
async def test_sessions_stay_whatever_the_api(stack: Stack, path: str, body: Callable[..., Yaml]) -> None:
    """First turns spread; follow-ups go back to their cache, and the engine finds there what was predicted."""
    first: list[str | None] = []
    for session in range(3):
        turns = [("user", f"{path} {session} {LONG}")]
        for turn in range(3):
            answer = await ask(stack, path, **body(turns))
            assert answer.status == 200, answer.body
            decided = await decision(stack, answer)
            assert (decided["turn"], decided["reason"]) == (turn, "stick" if turn else "first_turn")
            if turn == 0:
                first.append(answer.engine)
            else:
                assert answer.engine == first[-1]
                assert 0 < decided["history_bytes"] < decided["prompt_bytes"]
                assert decided["hit_bytes"] > 0.9 * decided["history_bytes"]
                assert cached_of(path, answer.json["usage"]) > 100
            turns += [("assistant", text_of(path, answer.json)), ("user", f"go on {turn}")]
    assert len(set(first)) == 3


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, completions), (MESSAGES, messages), (RESPONSES, responses)])
async def test_streams_pass_whole(stack: Stack, path: str, body: Callable[..., Yaml]) -> None:
    """A stream reaches the client as the engine sent it, also where we read its beginning."""
    more = {"store": True} if path == RESPONSES else {}
    answer = await ask(stack, path, **body([("user", "stream")], stream=True, **more))
    events = [json.loads(line[5:]) for line in answer.body.splitlines() if line.startswith(b"data: {")]
    last = {"message_stop", "response.completed"}
    assert events[-1].get("type") in last or events[-1]["choices"][0]["finish_reason"]
    assert len(events) >= 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stored_response_is_continued_where_it_is_kept(stack: Stack, stream: bool) -> None:
    """Whoever was busy or idle meanwhile: each follow-up reaches the one engine that knows the response."""
    for session in range(4):
        body = responses([("user", f"{stream} {session}")], store=True, stream=stream)
        answer = await ask(stack, RESPONSES, **body)
        begun = json.loads(answer.body.split(b"\n")[1][5:])["response"] if stream else answer.json
        for _ in range(3):
            again = await ask(
                stack, RESPONSES, input="go on", previous_response_id=begun["id"], max_output_tokens=4, store=True
            )
            assert again.status == 200, again.body
            assert again.engine == answer.engine
            decided = await decision(stack, again)
            assert decided["reason"] == "previous_response"
            begun = again.json
        read = await get(stack, f"{RESPONSES}/{begun['id']}")
        assert (read.status, read.engine) == (200, answer.engine)


async def test_an_unknown_response_goes_by_load(stack: Stack) -> None:
    """The engine says that it does not exist; we say that nobody remembers it."""
    answer = await ask(stack, RESPONSES, input="go on", previous_response_id="resp_nobody")
    assert answer.status == 404
    assert (await decision(stack, answer))["reason"] == "unknown_response"


async def test_a_framework_tells_the_turn(stack: Stack) -> None:
    """`x-smetric-turn` wins over counting, for any API; garbage is ignored."""
    prompt = json.dumps({"prompt": f"raw text {LONG}", "max_tokens": 4}).encode()
    first = await post(stack, prompt, path=COMPLETIONS, headers={"x-smetric-turn": "0"})
    assert (await decision(stack, first))["turn"] == 0
    again = await post(stack, prompt, path=COMPLETIONS, headers={"x-smetric-turn": "3"})
    decided = await decision(stack, again)
    assert (decided["turn"], decided["reason"], again.engine) == (3, "stick", first.engine)
    assert decided["history_bytes"] == decided["prompt_bytes"]
    for garbage in ("", "-1", "x", "1.5", "9" * 40, "1,1"):
        ignored = await post(stack, prompt, path=COMPLETIONS, headers={"x-smetric-turn": garbage})
        assert (await decision(stack, ignored))["turn"] == 0
    agent = chat(("user", LONG), ("assistant", "yes"), ("user", "go on"))
    compacted = await post(stack, agent, headers={"x-smetric-turn": "0"})
    assert (await decision(stack, compacted))["reason"] == "first_turn"


async def test_counting_tokens_goes_by_load(stack: Stack) -> None:
    """Nothing is cached by it, so it takes no session anywhere."""
    body = {name: value for name, value in messages([("user", "count")]).items() if name != "max_tokens"}
    answer = await ask(stack, f"{MESSAGES}/count_tokens", **body)
    assert answer.json["input_tokens"] > 100
    assert (await decision(stack, answer))["reason"] == "no_prefill"


async def test_nobody_complains(stack: Stack) -> None:
    """After all of the above: every load is given back, no message was spurious, nothing is in the log."""
    await until(lambda: not any(loads(stack)))
    for counter in ("streams_failed", "spurious_msgs_received", "message_timeouts", "failure_mode_allowed"):
        assert stack.envoy_counter(f"http.agents.ext_proc.{counter}") == 0, counter
    assert not complaints(stack)


async def test_routers_share_who_keeps_what() -> None:
    """With Redis every worker knows what another one saw; where we may not look, the follow-up goes by load."""
    with Stack(engines=3, index=REDIS, workers=2) as stack:
        for session in range(4):
            answer = await ask(stack, RESPONSES, **responses([("user", f"s {session}")], store=True))
            for _ in range(2):
                again = await ask(stack, RESPONSES, input="go on", previous_response_id=answer.json["id"])
                assert (again.status, again.engine) == (200, answer.engine)
    with changed(Stack(engines=2), hides_responses) as blind:
        answer = await ask(blind, RESPONSES, **responses([("user", "s")], store=True))
        again = await ask(blind, RESPONSES, input="go on", previous_response_id=answer.json["id"])
        assert (await decision(blind, again))["reason"] == "unknown_response"


def shows_by_route(root: Yaml, ext_proc: Yaml) -> None:
    """Responses are shown on a route of their own, and not because we ask."""
    del ext_proc["allow_mode_override"]
    host = manager(root)["route_config"]["virtual_hosts"][0]
    route = copy.deepcopy(host["routes"][0])
    route["match"] = {"prefix": RESPONSES}
    mode = {**ext_proc["processing_mode"], "response_body_mode": "STREAMED"}
    per_route = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
    route["typed_per_filter_config"] = {
        "envoy.filters.http.ext_proc": {"@type": per_route, "overrides": {"processing_mode": mode}}
    }
    host["routes"].insert(0, route)


@pytest.mark.parametrize("mode", ["BUFFERED", "FULL_DUPLEX_STREAMED"])
async def test_a_route_that_shows_responses(mode: str) -> None:
    """It needs no override, and works where Envoy takes none: with FULL_DUPLEX_STREAMED requests."""
    with changed(Stack(engines=3, body_mode=mode), shows_by_route) as stack:
        await until(lambda: stack.envoy_counter("cluster.extproc.membership_healthy") == 1)
        for stream in (False, True):
            body = responses([("user", f"{mode} {stream}")], store=True, stream=stream)
            answer = await ask(stack, RESPONSES, **body)
            begun = json.loads(answer.body.split(b"\n")[1][5:])["response"] if stream else answer.json
            again = await ask(stack, RESPONSES, input="go on", previous_response_id=begun["id"], max_output_tokens=4)
            assert (again.status, again.engine) == (200, answer.engine)
            assert (await decision(stack, again))["reason"] == "previous_response"
        assert stack.envoy_counter("http.agents.ext_proc.spurious_msgs_received") == 0
        assert not complaints(stack)


def two_pools(root: Yaml, ext_proc: Yaml) -> None:
    """Engine 0 serves `tiny` in one cluster, engine 1 `other` in another."""
    clusters = root["static_resources"]["clusters"]
    (first,) = (cluster for cluster in clusters if cluster["name"] == "engines")
    second = copy.deepcopy(first) | {"name": "others"}
    second["load_assignment"]["cluster_name"] = "others"
    clusters.append(second)
    for cluster, position, model in ((first, 0, "tiny"), (second, 1, "other")):
        endpoints = cluster["load_assignment"]["endpoints"][0]
        endpoints["lb_endpoints"] = [endpoints["lb_endpoints"][position]]
        cluster["metadata"]["filter_metadata"]["smetric"]["models"] = [model]
    metadata = ext_proc["grpc_service"]["initial_metadata"]
    (pool,) = (entry for entry in metadata if entry["key"] == "x-smetric-cluster")
    pool["value"] = "engines, others"
    host = manager(root)["route_config"]["virtual_hosts"][0]
    route = copy.deepcopy(host["routes"][0])
    route["match"]["headers"] = [{"name": "x-smetric-pool", "string_match": {"exact": "others"}}]
    route["route"]["cluster"] = "others"
    host["routes"].insert(0, route)


@pytest.mark.parametrize("mode", ["BUFFERED", "FULL_DUPLEX_STREAMED"])
async def test_the_model_chooses_the_pool(mode: str) -> None:
    """Each request reaches the cluster that serves its model; an unknown one is refused by an engine."""
    options = ["--model-name", "tiny", "--model-name", "other"]
    with changed(Stack(engines=2, engine_options=options, body_mode=mode), two_pools) as stack:
        tiny, other = (engine.address for engine in stack.engines)
        await until(lambda: stack.envoy_counter("cluster.extproc.membership_healthy") == 1)
        for model, engine in (("tiny", tiny), ("other", other), ("other", other), ("tiny", tiny)):
            answer = await post(stack, chat(("user", LONG), model=model), headers={"x-smetric-pool": "others"})
            assert (answer.status, answer.engine) == (200, engine)
            decided = await decision(stack, answer)
            assert decided["pool"] == ("engines" if model == "tiny" else "others")
        unknown = await post(stack, chat(("user", "x"), model="nobody"))
        assert (unknown.status, unknown.engine) == (404, tiny)
        follow_up = chat(("user", LONG), ("assistant", "yes"), ("user", "go on"), model="other")
        assert (await decision(stack, await post(stack, follow_up)))["turn"] == 1
        await asyncio.to_thread(stack.access_log, 6)
        assert not complaints(stack)
