"""The protocol through a real Envoy that reaches the picker by TLS: hints, served endpoint, streamed answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.base.headers import CONFORMANCE_SELECTION, CONFORMANCE_SERVED, SUBSET, SUBSET_NAMESPACE
from extproc.processor import tls
from loadgen.stack.stack import Stack
from tests.epp.envoy_tls import reach_by_tls
from tests.epp.handshake import Handshake, der, shake
from tests.support.agents import chat, complaints, decision, get, loads, post, until

TYPES = "type.googleapis.com/envoy.extensions"
HINT = "x-test-subset"  # a request header that the tests' Envoy turns into the hint
SPURIOUS = ("streams_failed", "spurious_msgs_received", "message_timeouts", "rejected_header_mutations")


def configure(stack: Stack, response_mode: str) -> None:
    """TLS towards the picker, hints from a header, answers shown to the picker."""
    tree = yaml.safe_load(stack.envoy_yaml.read_text("utf-8"))
    static = tree["static_resources"]
    reach_by_tls(tree)
    filters = static["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    to_metadata: dict[str, Any] = {
        "name": "envoy.filters.http.header_to_metadata",
        "typed_config": {
            "@type": f"{TYPES}.filters.http.header_to_metadata.v3.Config",
            "request_rules": [
                {"header": HINT, "on_header_present": {"metadata_namespace": SUBSET_NAMESPACE, "key": SUBSET}}
            ],
        },
    }
    (position,) = (i for i, one in enumerate(filters) if one["name"].endswith("ext_proc"))
    modes = filters[position]["typed_config"]["processing_mode"]
    modes |= {"response_body_mode": response_mode, "response_trailer_mode": "SEND"}
    filters.insert(position, to_metadata)
    stack.envoy_yaml.write_text(yaml.safe_dump(tree, sort_keys=False), "utf-8")


@pytest.fixture(
    scope="module", params=[("BUFFERED", "STREAMED"), ("FULL_DUPLEX_STREAMED",) * 2], ids=["buffered", "duplex"]
)
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two engines behind Envoy; the picker by TLS with a certificate in files."""
    directory: Path = tmp_path_factory.mktemp("tls")
    _write(directory)
    files = ["--tls-cert", str(directory / "tls.crt"), "--tls-key", str(directory / "tls.key")]
    mode, response_mode = request.param
    made = Stack(engines=2, body_mode=mode, extproc_options=[*files, "--conformance"], directory=directory)
    configure(made, response_mode)
    with made as running:
        yield running


async def test_envoy_is_served_by_tls(stack: Stack) -> None:
    """Envoy reaches the picker by TLS and HTTP/2, health checks included, and decisions are obeyed."""
    answer = await post(stack, chat(("user", "hello")))
    assert answer.status == 200
    decided = await decision(stack, answer)
    assert (decided["instance"], decided["reason"]) == (answer.engine, "first_turn")
    assert stack.envoy_counter("cluster.extproc.ssl.handshake") > 0
    assert stack.envoy_counter("cluster.extproc.membership_healthy") == 1


async def test_envoy_hands_on_a_subset_hint(stack: Stack) -> None:
    """Metadata that a filter sets before ours restricts the choice; one that names nobody refuses the request."""
    for engine in stack.engines:
        for _ in range(3):
            answer = await post(stack, chat(("user", "hello")), headers={HINT: engine.address})
            assert (answer.status, answer.engine) == (200, engine.address)
    answer = await post(stack, chat(("user", "hello")), headers={HINT: "10.9.9.9:1"})
    assert (answer.status, answer.json["error"]["code"]) == (503, "no_instance_available")


async def test_envoy_says_who_served(stack: Stack) -> None:
    """The served endpoint comes back in metadata, and a conformance test reads it in the response."""
    for engine in stack.engines:
        answer = await post(stack, chat(("user", "hello")), headers={CONFORMANCE_SELECTION: engine.address})
        assert answer.engine == engine.address
        assert answer.headers[CONFORMANCE_SERVED] == engine.address


async def test_streamed_answers_pass_through_the_picker(stack: Stack) -> None:
    """An answer that Envoy shows us reaches the client as the engine wrote it, streamed or whole."""
    body = {"stream": True, "max_tokens": 200}
    answer = await post(stack, chat(("user", "tell me a story"), **body))
    lines = [line for line in answer.body.decode().split("\n\n") if line]
    assert answer.status == 200
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    assert len(lines) > 20
    assert (await get(stack, "/v1/models")).json["data"]


async def test_a_renewed_certificate_needs_no_restart(stack: Stack) -> None:
    """The files are replaced while Envoy is served: the next handshake shows the new one, and nobody fails."""
    renewed = _write(stack.directory)
    assert stack.extproc is not None
    listen = stack.extproc.arguments[stack.extproc.arguments.index("--listen") + 1]
    shown = await asyncio.to_thread(shake, int(listen.rpartition(":")[2]))
    assert shown == Handshake("h2", der(renewed))
    answers = await asyncio.gather(*(post(stack, chat(("user", "hello"))) for _ in range(10)))
    assert {answer.status for answer in answers} == {200}


async def test_envoy_has_nothing_to_complain_about(stack: Stack) -> None:
    """After all of the above: no failed stream, no spurious message, no load left."""
    await until(lambda: not any(loads(stack)))
    assert {name: stack.envoy_counter(f"http.agents.ext_proc.{name}") for name in SPURIOUS} == dict.fromkeys(
        SPURIOUS, 0
    )
    assert all("--conformance" in line for line in complaints(stack))


def _write(directory: Path) -> tls.Pair:
    pair = tls.make_self_signed()
    (directory / "tls.crt").write_bytes(pair.certificate)
    (directory / "tls.key").write_bytes(pair.key)
    return pair
