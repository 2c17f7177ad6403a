"""Paths that Envoy rewrites behind us, and bodies in every encoding: sessions stay all the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from loadgen.stack.stack import Stack
from tests.support.agents import WORD, chat, decision, get, post

Yaml = dict[str, Any]


def template(field: str, kind: str, **config: str) -> Yaml:
    """A path template, to match or to rewrite by."""
    url = f"type.googleapis.com/envoy.extensions.path.{kind}.uri_template.v3.UriTemplate{kind.title()}Config"
    return {field: {"name": kind, "typed_config": {"@type": url, **config}}}


REWRITTEN: list[tuple[Yaml, Yaml]] = [
    ({"prefix": "/team-a/"}, {"prefix_rewrite": "/"}),
    ({"path_separated_prefix": "/prod/llama/v1"}, {"prefix_rewrite": "/v1"}),
    (
        {"prefix": "/openai/"},
        {"regex_rewrite": {"pattern": {"regex": "^/openai/deployments/[^/]+/(.*)$"}, "substitution": "/v1/\\1"}},
    ),
    (
        template("path_match_policy", "match", path_template="/of/{model}/{rest=**}"),
        template("path_rewrite_policy", "rewrite", path_template_rewrite="/v1/{rest}"),
    ),
]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Four engines behind routes that rewrite paths in each of Envoy's ways."""
    running = Stack(engines=4, engine_options=["--time-scale", "0.05"])
    root: Yaml = yaml.safe_load(running.envoy_yaml.read_text("utf-8"))
    manager = root["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    made = [copy.deepcopy(routes[0]) for _ in REWRITTEN]
    for route, (match, rewrite) in zip(made, REWRITTEN, strict=True):
        route["match"] = match
        route["route"] |= rewrite
    routes[:0] = made
    running.envoy_yaml.write_text(yaml.dump(root, sort_keys=False), "utf-8")
    with running:
        yield running


@pytest.mark.parametrize(
    "path",
    [
        "/team-a/v1/chat/completions",
        "/prod/llama/v1/chat/completions",
        "/openai/deployments/tiny/chat/completions",
        "/of/llama/chat/completions",
    ],
)
async def test_sessions_stay_behind_a_rewritten_path(stack: Stack, path: str) -> None:
    """Six sessions, each followed by a request of somebody else: every follow-up goes back to its cache."""
    for session in range(6):
        asked = [("system", f"{path} {session} {WORD * 60}"), ("user", "go")]
        first = await post(stack, chat(*asked), path=path)
        assert (first.status, (await decision(stack, first))["reason"]) == (200, "first_turn"), first.body
        await post(stack, chat(("user", "noise")))
        again = await post(stack, chat(*asked, ("assistant", "done"), ("user", "more")), path=path)
        assert (again.engine, (await decision(stack, again))["reason"]) == (first.engine, "stick")


async def test_a_stored_response_is_found_behind_a_rewritten_path(stack: Stack) -> None:
    """Reading it reaches the engine that keeps it."""
    path = "/team-a/v1/responses"
    for session in range(4):
        kept = await post(stack, json.dumps({"input": f"s {session}", "store": True}).encode(), path=path)
        read = await get(stack, f"{path}/{kept.json['id']}")
        assert (read.status, read.engine) == (200, kept.engine)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
async def test_sessions_stay_whatever_the_encoding(stack: Stack, encoding: str) -> None:
    """The engine reads such a body, and so do we."""
    for session in range(4):
        asked = [("system", f"{encoding} {session} \u00e9 {WORD * 60}"), ("user", "go")]
        first = await post(stack, chat(*asked).decode().encode(encoding))
        assert (first.status, (await decision(stack, first))["reason"]) == (200, "first_turn"), first.body
        body = chat(*asked, ("assistant", "done"), ("user", "more"))
        again = await post(stack, body.decode().encode(encoding))
        assert (again.engine, (await decision(stack, again))["reason"]) == (first.engine, "stick")
