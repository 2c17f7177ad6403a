"""The workload of a replay: a profile's sessions or a recorded trace, as long, as fast and as many as asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from loadgen.workloads.arrivals import arrange, fitting
from loadgen.workloads.profiles import PROFILES
from loadgen.workloads.scaling import scaled
from loadgen.workloads.synthetic import generate, generate_whole
from loadgen.workloads.trace import Dispatch, Fact, Trace
from loadgen.workloads.traces import load


def workload(
    name: str,
    *,
    rate: float | None = None,
    seconds: float = 300.0,
    sessions: int | None = None,
    seed: int = 0,
    scale: float = 1.0,
    max_context: int | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Trace:
    """The requests to replay, at least one.

    Args:
        name: a profile, or the path of a trace.
        rate: requests a second; a trace keeps its own arrivals without.
        seconds: length of the workload, where the rate decides.
        sessions: so many whole sessions of a profile instead.
        seed: of what is drawn.
        scale: of all lengths.
        max_context: tokens of prompt and reply; what is longer is left out, with what follows it.
        note: hears what was not done quite as asked.

    Raises:
        ValueError: what is asked for does not go together; the message says what to do.
        TraceError: the trace cannot be read, or a line of it is wrong.
    """
    source = _recorded(name, sessions) if name not in PROFILES else _drawn(name, rate, seconds, sessions, seed)
    trace = scaled(source, scale)
    if abs(trace.block_size - source.block_size * scale) > 1e-9 and trace.block_size != source.block_size:
        note(
            f"lengths are scaled by {trace.block_size / source.block_size:g}: "
            f"a block of {source.block_size} tokens becomes one of {trace.block_size}"
        )
    if rate is not None and name not in PROFILES:
        trace = arrange(trace, rate=rate, seconds=seconds, seed=seed, max_input=max_context)
    elif max_context is not None:
        trace, left_out = fitting(trace, max_context)
        if left_out:
            note(f"{left_out} requests are left out: they, or what they go on from, are too long")
    if not trace.requests:
        raise ValueError(f"{name}: nothing is left to replay")
    return trace


def check(name: str, trace: Trace, dispatch: Dispatch, *, closed: bool) -> None:
    """Raises ValueError where a trace does not say when its requests are to be sent."""
    if Fact.ARRIVALS not in trace.facts and not closed:
        raise ValueError(f"{name} does not say when sessions began: --rate X draws arrivals, --closed N needs none")
    if dispatch is Dispatch.THINK and any(r.gap_s is None for r in trace.requests if r.parent is not None):
        raise ValueError(f"{name} does not say how long clients thought: --dispatch trace keeps its times")


def _recorded(name: str, sessions: int | None) -> Trace:
    if not Path(name).exists():
        raise ValueError(f"{name}: neither a file nor one of the profiles {', '.join(PROFILES)}")
    if sessions is not None:
        raise ValueError(f"--sessions: {name} has the sessions that it has; --rate X --seconds S samples them")
    return load(Path(name))


def _drawn(name: str, rate: float | None, seconds: float, sessions: int | None, seed: int) -> Trace:
    if sessions is not None:
        return generate_whole(PROFILES[name], sessions=sessions, rate=rate or 1.0, seed=seed)
    if rate is None:
        raise ValueError(f"profile {name}: --rate X, in requests a second, or --sessions N is needed")
    return generate(PROFILES[name], rate=rate, seconds=seconds, seed=seed)
