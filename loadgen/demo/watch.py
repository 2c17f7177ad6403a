"""What the parts of a stack know of a run as it goes on: ext_proc of loads and the index, Envoy of the decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from loadgen.json_types import Json
from loadgen.replay.progress import Decision, InstanceRow, Snapshot
from loadgen.stack.stack import Stack

SHOWN_DECISIONS = 5  # so that all fits into 24 lines of a terminal


class Watch:
    """Completes snapshots of one run over a stack."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._names = {engine.address: engine.name for engine in stack.engines}

    def complete(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with all that the parts know. Asks other processes, so it may take some milliseconds."""
        instances = _instances(self._stack.state())
        decided = [entry["smetric"] for entry in self._stack.access_log() if entry.get("smetric")]
        return replace(
            snapshot,
            rows=[self._row(row, instances.get(row.name, {})) for row in snapshot.rows],
            reasons=Counter(one["reason"] for one in decided),
            decisions=self._decisions(decided[-SHOWN_DECISIONS:]),
        )

    def _row(self, row: InstanceRow, known: Json) -> InstanceRow:
        return replace(
            row,
            name=self._names.get(row.name, row.name),
            in_flight=known.get("in_flight"),
            index_blocks=known.get("index_blocks"),
        )

    def _decisions(self, decided: Sequence[Json]) -> list[Decision]:
        return [
            Decision(
                instance=self._names.get(one["instance"], one["instance"]),
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
