"""`python -m loadgen replay`: a workload through a live gateway."""

from __future__ import annotations

import argparse
import math
import re
import secrets
from dataclasses import asdict, replace
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from loadgen.command_error import CommandError
from loadgen.commands import INTERRUPTED
from loadgen.commands.options import add_service_level, count, not_negative, positive, service_level
from loadgen.engine.options import MODEL_DIR
from loadgen.replay import access_log
from loadgen.replay import run as replay_run
from loadgen.replay.chat_request import CHAT, ENGINE_HEADER
from loadgen.replay.replay import Options
from loadgen.replay.run import Gateway, Outcome, Unreachable
from loadgen.replay.script import Script
from loadgen.replay.words import Words
from loadgen.replay.workload import check, workload
from loadgen.results.records import CSV, RunInfo, Slo, export_csv, read_rows
from loadgen.workloads.profiles import PROFILES
from loadgen.workloads.trace import Dispatch, Trace

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # of a header: RFC 9110, 5.6.2
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*")  # of a header: RFC 9110, 5.5
_OURS = ("content-length", "transfer-encoding")  # they say how long a request is

DESCRIPTION = """\
Send a workload through a live gateway (Envoy with ext_proc, or any OpenAI endpoint) to live engines, simulated or real.

WORKLOAD is a profile of `generate` or a trace of any format that `study` reads. Requests are sent when the workload
says so, whatever the gateway does (open loop); with --closed N, N sessions run at a time. Replies have exactly the
workload's lengths (ignore_eos, max_tokens, min_tokens). A follow-up carries what the engine really answered, a fork its
parent's real history, a compaction the system prompt and a summary.

OUT gets run.json and requests.jsonl, a row a request as it ends, the same rows as a simulation's. A session ends at its
first failed request; the requests that would have followed are failed rows too ("parent failed").

examples:

  python -m loadgen replay paper-trace-1 --rate 2 --seconds 300 --scale 0.1 --url http://127.0.0.1:10000 --out out/r
  python -m loadgen replay trace.jsonl --dispatch trace --speed 2 --out out/twice-as-fast
  python -m loadgen replay paper-trace-1 --closed 16 --sessions 100 --scale 0.1 --out out/closed
  python -m loadgen replay trace.jsonl --access-log /var/log/envoy/access.log --label smetric --out out/smetric

exit codes: 0 all requests ended well, 1 some failed, or the replay cannot begin or go on (the message says why), 2
wrong usage, 130 interrupted (the rows so far are kept, run.json says that it is not complete)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("workload", metavar="WORKLOAD", help=f"a trace, or a profile: {', '.join(PROFILES)}")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the run is written")
    gateway = parser.add_argument_group("gateway")
    gateway.add_argument("--url", default="http://127.0.0.1:10000", help="up to what precedes /v1 (%(default)s)")
    gateway.add_argument("--model", metavar="NAME", help="to ask for (the first that GET /v1/models names)")
    gateway.add_argument(
        "--model-dir",
        type=Path,
        default=MODEL_DIR,
        metavar="DIR",
        help="its tokenizer.json and tokenizer_config.json, for texts of the right lengths (the simulated engines')",
    )
    gateway.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="of every request; may be given again"
    )
    gateway.add_argument(
        "--instance-header",
        default=ENGINE_HEADER,
        metavar="NAME",
        help="header of an answer that names the instance (%(default)s, which simulated engines set)",
    )
    gateway.add_argument(
        "--access-log",
        type=Path,
        metavar="FILE",
        help="Envoy's, as envoy/envoy.yaml writes it to a file: rows get reason, load and predicted hit",
    )
    gateway.add_argument("--timeout", type=positive, default=600.0, metavar="S", help="of one answer (%(default)s)")
    time = parser.add_argument_group("time and lengths")
    time.add_argument(
        "--dispatch",
        type=Dispatch,
        choices=list(Dispatch),
        default=Dispatch.THINK,
        help="when follow-ups are sent: think, the workload's gap after their parent's real end; trace, at their time "
        "stamp, or at that end where it is later (%(default)s)",
    )
    time.add_argument("--closed", type=count, metavar="N", help="closed loop: sessions at a time, with their forks")
    time.add_argument("--speed", type=positive, default=1.0, metavar="X", help="2 is twice as fast (%(default)s)")
    time.add_argument("--scale", type=positive, default=1.0, metavar="X", help="of all lengths (%(default)s)")
    time.add_argument(
        "--max-context",
        type=count,
        metavar="N",
        help="leave out what is longer, prompt and reply, and what follows it",
    )
    time.add_argument("--duration", type=positive, default=math.inf, metavar="S", help="send nothing later (no limit)")
    time.add_argument(
        "--warmup", type=not_negative, default=0.0, metavar="S", help="not counted in figures (%(default)s)"
    )
    drawn = parser.add_argument_group("profiles, and traces that are to be resampled")
    drawn.add_argument("--rate", type=positive, metavar="X", help="requests a second; a trace keeps its own without")
    drawn.add_argument("--seconds", type=positive, default=300.0, metavar="S", help="of the workload (%(default)s)")
    drawn.add_argument("--sessions", type=count, metavar="N", help="of a profile: so many whole ones instead")
    drawn.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    figures = add_service_level(parser, "figures")
    figures.add_argument("--policy", default="unknown", metavar="NAME", help="what the gateway runs, for reports")
    figures.add_argument("--label", metavar="TEXT", help="of the curve in reports (the policy)")
    figures.add_argument("--instances", metavar="NAME[,NAME...]", help="all, idle ones included (those that answered)")
    figures.add_argument("--export", choices=["csv"], help=f"write OUT/{CSV} too")


def run(args: argparse.Namespace) -> int:
    """Replay, keep the rows, say what they come to."""
    _check_text(args)
    if not 0 <= args.warmup < args.duration:
        raise CommandError(f"--warmup {args.warmup:g}: from 0 to less than --duration is expected")
    slo = service_level(args)
    url, prefix = _split(args.url)
    if not _NAME.fullmatch(args.instance_header):
        raise CommandError(f"--instance-header {args.instance_header!r}: the name of a header is expected")
    gateway = Gateway(url=url, headers=_headers(args.header), timeout_s=args.timeout)
    log_start = _size(args.access_log)
    try:
        served = replay_run.probe(gateway, prefix)
    except Unreachable as error:
        raise CommandError(f"the gateway cannot be reached: {error} (is it running? another --url?)") from error
    trace, script = _prepared(args)
    tag = secrets.token_hex(6)
    options = Options(
        dispatch=args.dispatch,
        speed=args.speed,
        closed=args.closed,
        until_s=args.duration,
        model=args.model or served,
        prefix=prefix,
        instance_header=args.instance_header,
        tag=tag if args.access_log else None,
    )
    info = _info(args, trace, options, slo)
    try:
        outcome = replay_run.perform(gateway, trace, script, options, info, args.out)
        outcome = _finish(args, outcome, tag, log_start)
    except OSError as error:
        raise CommandError(f"{error.filename or args.out}: {error.strerror or error}") from error
    console = Console(soft_wrap=True)
    for line in replay_run.summary(outcome, info):
        console.print(line, highlight=False, markup=False)
    console.print(f"run             {args.out}", highlight=False, markup=False)
    if outcome.interrupted:
        return INTERRUPTED
    return 1 if outcome.counts.failed else 0


def _prepared(args: argparse.Namespace) -> tuple[Trace, Script]:
    try:
        trace = workload(
            args.workload,
            rate=args.rate,
            seconds=args.seconds,
            sessions=args.sessions,
            seed=args.seed,
            scale=args.scale,
            max_context=args.max_context,
            note=_warn,
        )
        check(args.workload, trace, args.dispatch, closed=args.closed is not None)
    except ValueError as error:
        raise CommandError(str(error)) from error
    try:
        return trace, Words(trace, args.model_dir)
    except (OSError, ValueError) as error:
        raise CommandError(f"--model-dir {args.model_dir}: {error}") from error


def _finish(args: argparse.Namespace, outcome: Outcome, tag: str, log_start: int) -> Outcome:
    """Put the decisions into the rows, and export them. Raises OSError."""
    if args.access_log:
        answered, decided = access_log.merge(args.out, args.access_log, tag, start=log_start)
        outcome = replace(outcome, rows=list(read_rows(args.out)))
        if decided < answered:
            _warn(f"{args.access_log} has a decision for {decided} of {answered} requests that were answered")
    if args.export:
        export_csv(outcome.rows, args.out / CSV)
    return outcome


def _info(args: argparse.Namespace, trace: Trace, options: Options, slo: Slo) -> RunInfo:
    recorded = args.workload not in PROFILES and args.rate is None
    return RunInfo(
        kind="replay",
        label=args.label or args.policy,
        policy=args.policy,
        workload=args.workload,
        rate=args.speed if recorded else (args.rate or 1.0) * args.speed,
        seed=args.seed,
        instances=[name.strip() for name in args.instances.split(",")] if args.instances else [],
        window=(args.warmup, args.warmup),
        settings={
            "url": args.url,
            "model": options.model,
            "dispatch": options.dispatch.value,
            "closed": options.closed,
            "speed": args.speed,
            "scale": args.scale,
            "duration_s": None if math.isinf(args.duration) else args.duration,
            "requests": len(trace.requests),
            **{f"slo_{name}": value for name, value in asdict(slo).items()},
        },
    )


def _split(url: str) -> tuple[str, str]:
    """(scheme, host and port; what comes before `/v1` in the API's paths)."""
    try:
        parts = urlsplit(url)
        port = parts.port  # raises for what is no port
    except ValueError as error:
        raise CommandError(f"--url {url!r}: {error}; http://HOST:PORT is expected") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or re.search(r"[\x00-\x20?#]", url):
        raise CommandError(f"--url {url!r}: http://HOST:PORT is expected, without a query")
    path = "/".join(["", *filter(None, parts.path.split("/"))])
    return f"{parts.scheme}://{parts.netloc}", path.removesuffix(CHAT).removesuffix("/v1")


def _headers(given: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for header in given:
        name, colon, value = header.partition(":")
        name, value = name.strip(), value.strip(" \t")
        if not colon or not _NAME.fullmatch(name):
            raise CommandError(f"--header {header!r}: NAME:VALUE is expected")
        if not _VALUE.fullmatch(value):
            raise CommandError(f"--header {header!r}: a value is one line, without control characters")
        if name.lower() in _OURS:
            raise CommandError(f"--header {header!r}: replay sets this one itself")
        headers[name] = value
    return headers


def _check_text(args: argparse.Namespace) -> None:
    """Raises CommandError for arguments that were no UTF-8: they could be neither sent nor written."""
    for name, value in vars(args).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not text.isascii() and text != text.encode("utf-8", "replace").decode():
                option = "" if name == "workload" else f"--{name.replace('_', '-')} "
                raise CommandError(f"{option}{text!r}: UTF-8 is expected")


def _size(log: Path | None) -> int:
    """Bytes that a log has before the run."""
    if log is None:
        return 0
    try:
        return log.stat().st_size
    except OSError as error:
        raise CommandError(f"--access-log {error}") from error


def _warn(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(f"loadgen: {text}", highlight=False, markup=False)
