"""Small workloads for the simulation, written out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadgen.workloads.trace import Fact, Runs, Trace, TraceRequest

SIZE = 16
SYSTEM = 1024  # tokens


def request(
    name: str,
    at: float,
    tokens: int,
    output: int = 10,
    *,
    blocks: Runs | None = None,
    after: TraceRequest | None = None,
    session: str = "",
    gap: float | None = None,
) -> TraceRequest:
    """A request; by default of blocks that no other has, its session called as itself or as what it follows."""
    first = 1_000_000 * (1 + sum(ord(letter) * 37**place for place, letter in enumerate(name)) % 1000)
    return TraceRequest(
        id=name,
        session=session or (after.session if after else name),
        turn=after.turn + 1 if after else 0,
        arrival_s=at,
        input=tokens,
        output=output,
        blocks=((first, tokens // SIZE),) if blocks is None else blocks,
        parent=after.id if after else None,
        gap_s=gap,
        history=after.input + after.output if after else 0,
    )


def trace(*requests: TraceRequest, size: int = SIZE) -> Trace:
    return Trace("made", size, sorted(requests, key=lambda one: one.arrival_s))


def conversations(sessions: int, turns: int, *, every: float = 0.5, gap: float = 1.0, output: int = 40) -> Trace:
    """Sessions that begin one after the other, share a system prompt, and append 500 tokens a turn."""
    requests = []
    for number in range(sessions):
        before: TraceRequest | None = None
        own = 1_000_000 * (number + 1)
        for turn in range(turns):
            tokens = (before.input + before.output if before else SYSTEM) + 500
            shared = SYSTEM // SIZE
            before = request(
                f"s{number}/{turn}",
                every * number + 3 * turn,
                tokens,
                output,
                blocks=((0, shared), (own, tokens // SIZE - shared)),
                after=before,
                session=f"s{number}",
                gap=gap if turn else None,
            )
            requests.append(before)
    return trace(*requests)


def nothing_named(sessions: Sequence[TraceRequest]) -> Trace:
    """The same requests in a format that names no blocks."""
    facts = frozenset(Fact) - {Fact.BLOCKS}
    return Trace("nameless", SIZE, [replace(one, blocks=()) for one in sessions], facts)
