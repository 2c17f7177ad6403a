"""How long a request is taken to run where its trace does not say. Used for what a trace is asked, never for results.

Medians of the durations that Claude Code's sessions record (25,000 requests of one production API), by length of the
reply: 84 tokens 3.8 s, 141 4.9 s, 275 7.3 s, 530 12 s, 1042 20 s, 2300 41 s; the line through them.
"""

from __future__ import annotations

from loadgen.workloads.trace import TraceRequest

BASE_S = 2.3
TOKEN_S = 0.0175


def seconds(output: int) -> float:
    """Of a reply of so many tokens."""
    return BASE_S + TOKEN_S * output


def end(request: TraceRequest) -> float:
    """When a request ended, in seconds since the trace began: as recorded, else nominally."""
    duration = seconds(request.output) if request.duration_s is None else request.duration_s
    return request.arrival_s + duration
