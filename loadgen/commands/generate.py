"""`python -m loadgen generate`: workloads out of a profile, or out of recorded sessions."""

from __future__ import annotations

import argparse
import gzip
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import IO, cast

import msgspec
from rich.console import Console
from rich.progress import track

from loadgen.command_error import CommandError
from loadgen.engine.options import MODEL_DIR
from loadgen.replay.words import Words
from loadgen.workloads import synthetic
from loadgen.workloads.arrivals import arrange, fitting
from loadgen.workloads.profiles import PROFILES
from loadgen.workloads.trace import Trace
from loadgen.workloads.traces import load, own_jsonl

DESCRIPTION = f"""\
Draw agent sessions by a seed and write them in our superset JSONL, one request a line: turns, think times, forks,
compactions, rewritten histories, shared system prompts. What went on before the first second is part of it, so the load
is steady from the start. docs/workloads.md explains how, and what the profiles were fitted to.

profiles:

{chr(10).join(f"  {profile.name:14} {profile.about}" for profile in PROFILES.values())}

examples: 45 minutes of the paper's agents; 50 whole sessions; recorded sessions at a rate of one's own; a workload
of five minutes in real words, for engines that tokenise

  python -m loadgen generate --profile paper-trace-1 --rate 8 --seconds 2700 -o agents.jsonl
  python -m loadgen generate --profile claude-code --sessions 50 -o whole.jsonl
  python -m loadgen generate --trace sessions.jsonl.gz --rate 2 --seconds 3600 --max-tokens 262144 -o arranged.jsonl
  python -m loadgen generate --profile chat --rate 2 --seconds 300 --block-size 16 -o chat.jsonl --text chat-text.jsonl

then: python -m loadgen study agents.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--profile", choices=list(PROFILES), help="kind of sessions to draw")
    source.add_argument("--trace", type=Path, metavar="FILE", help="recorded sessions to sample, any format of `study`")
    parser.add_argument("--rate", type=float, default=8.0, metavar="R", help="requests a second, mean (%(default)s)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, default=2700.0, metavar="S", help="of arrivals (%(default)s)")
    length.add_argument("--sessions", type=int, metavar="N", help="so many sessions from first to last request instead")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of everything random (%(default)s)")
    parser.add_argument("--block-size", type=int, metavar="N", help="tokens (64; of a trace: its own)")
    parser.add_argument("--context", type=int, metavar="N", help="tokens before a compaction (the profile's)")
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="leave out requests of more, prompt and reply, and what follows them",
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="to write; *.gz is packed")
    parser.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="write also what to say: a line a request, messages of the right lengths",
    )
    parser.add_argument(
        "--model-dir",
        type=Path,
        default=MODEL_DIR,
        metavar="DIR",
        help="whose tokens --text counts (loadgen's own model)",
    )


def run(args: argparse.Namespace) -> int:
    """Draw, write, sum up."""
    _check(args)
    with Console(stderr=True).status("drawing sessions"):
        try:
            trace, dropped = _drawn(args)
        except ValueError as error:
            raise CommandError(str(error)) from error
    if not trace.requests and dropped:
        raise CommandError(f"all requests have more than --max-tokens {args.max_tokens}: raise it")
    if not trace.requests:
        raise CommandError("nothing arrived in so short a time: raise --seconds or --rate")
    if args.text is None:
        _write(trace, args.out)
    else:
        words = _words(trace, args.model_dir)
        with begun(args.text) as file:  # first, for a workload is not to be left behind without its text
            _write(trace, args.out)
            _say(trace, words, file)
    sys.stdout.write(summary(trace, args.out, dropped))
    return 0


def summary(trace: Trace, path: Path, dropped: int) -> str:
    """A few lines on a workload."""
    requests = trace.requests
    prompts = sorted(request.input for request in requests)
    replies = sorted(request.output for request in requests)
    triggers = Counter(str(request.trigger) for request in requests if request.trigger is not None)
    seconds = max(trace.duration_s, 1e-9)
    lines = [
        (
            f"{path}: {len(requests):,} requests of {len({request.session for request in requests}):,} sessions in "
            f"{trace.duration_s:,.0f} s ({len(requests) / seconds:.2f} a second), blocks of {trace.block_size} tokens"
        ),
        *(
            f"{name} tokens: " + ", ".join(f"p{share} {values[len(values) * share // 100]:,}" for share in (50, 90, 99))
            for name, values in (("prompt", prompts), ("reply", replies))
        ),
    ]
    if triggers:
        lines.append("triggers: " + ", ".join(f"{n} {k / len(requests):.1%}" for n, k in triggers.most_common()))
    if dropped:
        lines.append(f"left out: {dropped:,} requests that were too long, or followed one that was")
    return "\n".join(lines) + "\n"


def _drawn(args: argparse.Namespace) -> tuple[Trace, int]:
    """The workload, and how many requests were left out of what it is drawn from."""
    if args.trace is not None:
        if (args.sessions, args.context, args.block_size) != (None, None, None):
            raise CommandError("--sessions, --context and --block-size are for profiles: a trace has its own")
        recorded = load(args.trace)
        trace = arrange(recorded, rate=args.rate, seconds=args.seconds, seed=args.seed, max_input=args.max_tokens)
        return trace, 0 if args.max_tokens is None else fitting(recorded, args.max_tokens)[1]
    profile = PROFILES[args.profile]
    if args.context is not None:
        profile = replace(profile, context=args.context)
    block_size = 64 if args.block_size is None else args.block_size
    if args.sessions is not None:
        trace = synthetic.generate_whole(
            profile, sessions=args.sessions, rate=args.rate, seed=args.seed, block_size=block_size
        )
    else:
        trace = synthetic.generate(profile, rate=args.rate, seconds=args.seconds, seed=args.seed, block_size=block_size)
    return (trace, 0) if args.max_tokens is None else fitting(trace, args.max_tokens)


def _check(args: argparse.Namespace) -> None:
    """Raises CommandError for what no drawing could make right."""
    if args.max_tokens is not None and args.max_tokens < 1:
        raise CommandError(f"--max-tokens {args.max_tokens}: expected a positive number")
    paths = {"--trace": args.trace, "--out": args.out, "--text": args.text}
    files = {name: path.resolve() for name, path in paths.items() if path is not None}
    for (name, path), (other, same) in combinations(files.items(), 2):
        if path == same or (path.exists() and same.exists() and path.samefile(same)):
            raise CommandError(f"{name} and {other} are one file, {paths[name]}: each needs its own")


def _words(trace: Trace, model_dir: Path) -> Words:
    try:
        return Words(trace, model_dir)
    except OSError as error:
        raise CommandError(f"{error.filename or model_dir}: {error.strerror or error}") from error
    except ValueError as error:
        raise CommandError(str(error)) from error


def _write(trace: Trace, path: Path) -> None:
    with begun(path) as file:
        own_jsonl.write(trace, file)


def _say(trace: Trace, words: Words, file: IO[bytes]) -> None:
    for request in track(trace.requests, "writing text", console=Console(stderr=True), disable=not sys.stderr.isatty()):
        ask = words.ask(request)
        line = {
            "request_id": request.id,
            "parent_request_id": request.parent,
            "keep": ask.keep,
            "messages": ask.messages,
            **({"tools": ask.tools} if ask.tools else {}),
            "max_tokens": request.output,
        }
        file.write(msgspec.json.encode(line) + b"\n")


@contextmanager
def begun(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, packed or not. Raises CommandError that names it, which the error of a full disk does not."""
    try:
        with cast("IO[bytes]", gzip.open(path, "wb")) if path.suffix == ".gz" else path.open("wb") as file:
            yield file
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from error
