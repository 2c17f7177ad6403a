"""The recordings of tests/fixtures as the event side sees them: frames, requests, and what the engine had cached."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.paths import FIXTURES

ALL = sorted(f"{path.parent.name}/{path.name.removesuffix('.jsonl.gz')}" for path in FIXTURES.glob("*/*.jsonl.gz"))


def lines(name: str) -> list[dict[str, Any]]:
    return read(FIXTURES / f"{name}.jsonl.gz")


def read(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def message(line: dict[str, Any]) -> list[bytes]:
    """An `event` line as a SUB socket hears it."""
    return [line["topic"].encode(), line["seq"].to_bytes(8, "big"), bytes.fromhex(line["payload_hex"])]


def payloads(name: str) -> list[bytes]:
    """The batches of a recording, in order."""
    return [bytes.fromhex(line["payload_hex"]) for line in lines(name) if line["kind"] == "event"]


@dataclass(frozen=True)
class Sent:
    """A request of a recording."""

    name: str  # its note, or session and turn
    tokens: list[int]
    cached: int  # tokens that the engine took from its cache
    adapter: str | None
    salt: str | None
    port: int | None  # where the events appeared that it caused; None without data parallelism


def sent(line: dict[str, Any], following: list[dict[str, Any]]) -> Sent | None:
    """A request that the engine answered and whose one prompt is recorded, else None."""
    usage, tokens = line.get("response_usage"), line.get("prompt_token_ids")
    if not usage or not tokens or isinstance(tokens[0], list):
        return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    body = line["body"]
    return Sent(
        name=line.get("note") or f"{line['session']} {line.get('turn')}",
        tokens=tokens,
        cached=usage.get("cache_read_input_tokens") or details.get("cached_tokens") or 0,
        adapter=body["model"] if body.get("model") in {"ad1", "ad2"} else None,
        salt=body.get("cache_salt"),
        port=next((other.get("port") for other in following if other["kind"] == "event"), None),
    )


def is_alone(line: dict[str, Any], others: list[dict[str, Any]]) -> bool:
    """Whether no other request was under way at the same time."""
    return not any(
        other is not line and other["kind"] == "request" and other["t"] < line["t_done"] and line["t"] < other["t_done"]
        for other in others
        if "t_done" in other and "t_done" in line
    )
