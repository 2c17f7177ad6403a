"""A replay as a run: its directory, its progress on a terminal, and what it came to, in words."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
import uvloop
from rich.console import Console

from loadgen.replay.answers import plain
from loadgen.replay.chat_request import connect, read_whole
from loadgen.replay.live import TerminalView
from loadgen.replay.progress import Progress, Snapshot
from loadgen.replay.replay import LATE_S, PARENT_FAILED, Counts, Options, Replay
from loadgen.replay.script import Script
from loadgen.results.measures import Quantiles, measure, slo_of
from loadgen.results.records import Row, RunInfo, RunWriter
from loadgen.workloads.trace import Trace

PROBE_S = 5.0  # what a gateway may take to say anything at all
REFRESH_S = 0.25
SHOWN_ERRORS = 3
SHOWN_CHARACTERS = 160  # of an error


class Unreachable(Exception):
    """Nobody answers at the URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """Where requests go. `url` is scheme, host and port."""

    url: str
    headers: Mapping[str, str]
    timeout_s: float  # for one whole answer


@dataclass(frozen=True, slots=True)
class Outcome:
    """`rows` in the order of ending."""

    rows: Sequence[Row]
    counts: Counts
    interrupted: bool


def probe(gateway: Gateway, prefix: str) -> str | None:
    """The first model that the gateway serves; None where it does not say.

    Raises:
        Unreachable: it does not answer.
    """
    return uvloop.run(_probe(gateway, prefix))


def perform(
    gateway: Gateway, trace: Trace, script: Script, options: Options, info: RunInfo, directory: Path
) -> Outcome:
    """Replay into a directory. Ctrl-C ends it, too: what has been written is kept, and marked as incomplete.

    Raises:
        OSError: the directory cannot be written.
    """
    rows: list[Row] = []
    counts = Counts()
    progress = Progress(info.label, len(trace.requests), counts, info.instances)
    try:
        with _no_long_collections(), RunWriter(directory, info) as writer, _shown() as show:

            def on_row(row: Row) -> None:
                rows.append(row)
                writer.add(row)

            try:
                uvloop.run(play(gateway, trace, script, options, on_row, progress, show))
            finally:
                show(progress.snapshot())
                _complete(info, rows, counts, options)
    except KeyboardInterrupt:
        return Outcome(rows, counts, interrupted=True)
    except BaseExceptionGroup as group:
        if (unwritten := _first(group, OSError)) is None:
            raise
        raise unwritten from group
    return Outcome(rows, counts, interrupted=False)


def summary(outcome: Outcome, info: RunInfo) -> Iterator[str]:
    """What a run came to, line by line."""
    rows, counts = outcome.rows, outcome.counts
    yield f"requests        {counts.done}, {counts.failed} failed" + (", interrupted" if outcome.interrupted else "")
    errors = Counter(_reason(row) for row in rows if row.error is not None)
    for reason, count in errors.most_common(SHOWN_ERRORS):
        yield f"                {count} x {reason}"
    if counts.short:
        yield f"short           {counts.short} replies had fewer tokens than asked for: does something drop ignore_eos?"
    if counts.doubtful:
        yield f"usage           {counts.doubtful} answers gave counts of tokens that cannot be: they are left out"
    if not counts.sent:
        return
    worst = max(row.sent_s - row.due_s for row in rows if row.error != PARENT_FAILED)
    yield (
        f"late            {counts.late / counts.sent:.1%} of {counts.sent} sent over {LATE_S * 1000:.0f} ms "
        f"after their time, the worst {worst * 1000:.0f} ms"
    )
    slo = slo_of(info)
    found = measure(rows, info)
    yield (
        f"TPS within SLO  {found.tps_slo:.1f} output tokens/s, of {found.tps:.1f} in all; "
        f"{_percent(found.slo_share)} of {found.requests} requests met TTFT <= {slo.ttft_s:g} s + "
        f"{slo.ttft_per_token_s * 1000:g} ms a token, TPOT <= {slo.tpot_s * 1000:g} ms"
    )
    if math.isnan(found.local):
        yield "hit ratio       unknown: usage has no cached_tokens (vLLM: --enable-prompt-tokens-details)"
    else:
        yield f"hit ratio       {_percent(found.local)} of the prompt tokens were in the instance's cache"
    yield f"TTFT            {_quantiles(found.ttft)}"
    yield f"TPOT            {_quantiles(found.tpot)}"
    if found.reasons:
        yield "decisions       " + ", ".join(f"{reason} {count}" for reason, count in found.reasons.items())
    if not any(found.per_instance.values()):
        yield "per instance    unknown: answers do not name their instance (--instance-header)"
        return
    yield "per instance    " + ", ".join(f"{name} {count}" for name, count in found.per_instance.items())
    yield (
        f"stickiness      follow-ups that came to the instance of the turn before {_percent(found.sticky_before)}, "
        f"of the first turn {_percent(found.sticky_first)}"
    )


async def _probe(gateway: Gateway, prefix: str) -> str | None:
    try:
        async with (
            connect(gateway.url, headers=gateway.headers, timeout_s=PROBE_S) as http,
            http.get(f"{prefix}/v1/models") as response,
        ):
            text = await read_whole(response.content)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        what = f"no answer within {PROBE_S:.0f} s" if isinstance(error, TimeoutError) else plain(str(error))
        raise Unreachable(f"{gateway.url}: {what}") from error
    try:
        name = msgspec.json.decode(text)["data"][0]["id"] if response.status == 200 else None
    except (msgspec.DecodeError, RecursionError, LookupError, TypeError):
        return None
    return plain(name) if isinstance(name, str) else None


async def play(
    gateway: Gateway,
    trace: Trace,
    script: Script,
    options: Options,
    on_row: Callable[[Row], None],
    progress: Progress | None = None,
    show: Callable[[Snapshot], None] = lambda _: None,
) -> None:
    """Replay once. `on_row` sees each row as its request ends; `show` is called now and then, in a thread, with how the
    `progress` stands. Cancelled, it leaves rows of what was in flight.
    """

    def note(row: Row) -> None:
        if progress:
            progress.add(row)
        on_row(row)

    async with connect(gateway.url, headers=gateway.headers, timeout_s=gateway.timeout_s) as http:
        replay = Replay(http, trace, script, options, note, progress.counts if progress else None)
        showing = asyncio.create_task(_show(progress, show)) if progress else None
        try:
            await replay.run()
        finally:
            if showing:
                showing.cancel()
                await asyncio.gather(showing, return_exceptions=True)


async def _show(progress: Progress, show: Callable[[Snapshot], None]) -> None:
    while True:
        await asyncio.to_thread(show, progress.snapshot())
        await asyncio.sleep(REFRESH_S)


@contextlib.contextmanager
def _shown() -> Iterator[Callable[[Snapshot], None]]:
    """The live view on stderr, on a terminal alone."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with TerminalView(console) as view:
        yield view.show


@contextlib.contextmanager
def _no_long_collections() -> Iterator[None]:
    """The workload stays: a collection that goes through all of it would hold up everybody's tokens."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _complete(info: RunInfo, rows: Sequence[Row], counts: Counts, options: Options) -> None:
    """What is known of a run only in the end."""
    last = max((row.end_s or row.sent_s for row in rows), default=0.0)
    info.wall_s = last
    start, _ = info.window
    end = options.until_s if math.isfinite(options.until_s) else math.nextafter(last, math.inf)
    info.window = (start, max(end, math.nextafter(start, math.inf)))
    if not info.instances:
        info.instances = sorted({row.instance for row in rows if row.instance is not None})
    info.settings = {**info.settings, "sent": counts.sent, "late": counts.late}


def _first(group: BaseExceptionGroup[BaseException], kind: type[OSError]) -> OSError | None:
    """One of a group's exceptions, if all are of a kind."""
    found, others = group.split(kind)
    one: BaseException | None = None if others else found
    while isinstance(one, BaseExceptionGroup):
        one = one.exceptions[0]
    return one if isinstance(one, OSError) else None


def _reason(row: Row) -> str:
    text = " ".join((row.error or "").split())[:SHOWN_CHARACTERS]
    return text if row.status in (None, 200) else f"{row.status} {text}"


def _percent(ratio: float) -> str:
    return "unknown" if math.isnan(ratio) else f"{ratio:.1%}"


def _quantiles(values: Quantiles) -> str:
    if math.isnan(values.p50):
        return "unknown"
    return f"p50 {values.p50 * 1000:.0f} ms, p90 {values.p90 * 1000:.0f} ms, p99 {values.p99 * 1000:.0f} ms"
