"""A run as it goes on: what the client recorded, what ext_proc says of itself, what Envoy logged of its decisions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from loadgen.demo.agents import Record
from loadgen.demo.live import Decision, Row, Snapshot
from loadgen.json_types import Json
from loadgen.stack.stack import Stack

SHOWN_DECISIONS = 5  # so that all fits into 24 lines of a terminal


class Watch:
    """Collects the records of one run over a stack; `snapshot` puts all sources together."""

    def __init__(self, stack: Stack, policy: str, requests: int) -> None:
        self._stack = stack
        self._policy = policy
        self._requests = requests
        self._began = time.monotonic()
        self.records: list[Record] = []

    def snapshot(self) -> Snapshot:
        """The state of things. Asks other processes, so it may take some milliseconds."""
        records = list(self.records)
        served = [record for record in records if record.ok]
        instances = _instances(self._stack.state())
        latest = {record.session: record.instance for record in served}
        sessions = Counter(latest.values())
        rows = []
        for engine in self._stack.engines:
            own = [record for record in served if record.instance == engine.address]
            known = instances.get(engine.address, {})
            rows.append(
                Row(
                    name=engine.name,
                    sessions=sessions[engine.address],
                    requests=len(own),
                    in_flight=known.get("in_flight"),
                    hit_ratio=_hit_ratio(own),
                    index_blocks=known.get("index_blocks"),
                )
            )
        decided = self._decided()
        return Snapshot(
            policy=self._policy,
            done=len(records),
            failed=len(records) - len(served),
            total=self._requests,
            elapsed_s=time.monotonic() - self._began,
            rows=rows,
            hit_ratio=_hit_ratio(served),
            reasons=Counter(one["reason"] for one in decided),
            decisions=self._decisions(decided[-SHOWN_DECISIONS:]),
        )

    def _decided(self) -> list[Json]:
        return [entry["smetric"] for entry in self._stack.access_log() if entry.get("smetric")]

    def _decisions(self, decided: Sequence[Json]) -> list[Decision]:
        names = {engine.address: engine.name for engine in self._stack.engines}
        return [
            Decision(
                instance=names.get(one["instance"], one["instance"]),
                reason=one["reason"],
                turn=int(one["turn"]),
                hit_bytes=int(one["hit_bytes"]),
                prompt_bytes=int(one["prompt_bytes"]),
                decision_ms=float(one["decision_ms"]),
            )
            for one in decided
        ]


def _instances(state: dict[str, Json]) -> dict[str, Json]:
    """`/debug/state`'s instances of all pools by address."""
    pools = state.get("pools") or {}
    return {name: instance for pool in pools.values() for name, instance in pool["instances"].items()}


def _hit_ratio(records: Sequence[Record]) -> float | None:
    """Cached prompt tokens / prompt tokens."""
    prompts = sum(record.prompt_tokens or 0 for record in records)
    return sum(record.cached_tokens or 0 for record in records) / prompts if prompts else None
