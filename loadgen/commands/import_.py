"""`python -m loadgen import`: a workload out of an operator's own logs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from extproc.base.errors import ConfigError
from loadgen.command_error import CommandError
from loadgen.commands.generate import begun, summary
from loadgen.engine.options import MODEL_DIR
from loadgen.engine.tokenizer import Tokens
from loadgen.workloads.imports import access_log, bodies, vllm_log
from loadgen.workloads.trace import Fact, Trace
from loadgen.workloads.traces import own_jsonl

DESCRIPTION = """\
Make a workload of what you have: Envoy's access log with our decisions, request bodies that were kept, or the log of a
vLLM that shows token ids. Written are times, lengths and names of prompt blocks, and nothing that anybody said.
docs/workloads.md says what each source must hold, and what is guessed.

what would another policy have done on your Tuesday? three commands

  python -m loadgen import access-log access.log -o tuesday.jsonl
  python -m loadgen sweep --set workload=tuesday.jsonl --set instances=8 --policy smetric --policy least-delay \\
                          --out out/tuesday
  python -m loadgen report out/tuesday --out out/tuesday-page

bodies are rendered with the model's own files:

  python -m loadgen import bodies requests.jsonl --model-dir /models/llama -o tuesday.jsonl
"""

_KINDS = {
    "access-log": "Envoy's access log, as envoy/envoy.yaml writes it",
    "bodies": "JSONL of request bodies with times, or a folder of JSON files",
    "vllm-log": "of vLLM with --enable-log-requests, at level DEBUG",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    kinds = "; ".join(f"{kind}: {text}" for kind, text in _KINDS.items())
    parser.add_argument("kind", choices=list(_KINDS), help=kinds)
    parser.add_argument("source", type=Path, metavar="PATH", help="to read, plain or gzip")
    parser.add_argument(
        "--model-dir",
        type=Path,
        default=MODEL_DIR,
        metavar="DIR",
        help="of `bodies`: tokenizer.json and chat template of the model that served them (loadgen's own model)",
    )
    parser.add_argument(
        "--bytes-per-token",
        type=float,
        default=access_log.BYTES,
        metavar="X",
        help="of `access-log`: bytes of text that a token of your model stands for (%(default)s: English and code)",
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="to write; *.gz is packed")


def run(args: argparse.Namespace) -> int:
    """Read, write, sum up."""
    if args.out.exists() and args.source.exists() and args.out.samefile(args.source):
        raise CommandError(f"-o {args.out}: is what is read; choose another name")
    if not 1 <= args.bytes_per_token <= 64:
        raise CommandError(f"--bytes-per-token {args.bytes_per_token}: expected 1 to 64")
    readers: dict[str, Callable[[], tuple[Trace, int]]] = {
        "access-log": lambda: access_log.read(args.source, args.bytes_per_token),
        "bodies": lambda: bodies.read(args.source, args.model_dir, Tokens(args.model_dir).encode),
        "vllm-log": lambda: vllm_log.read(args.source),
    }
    with Console(stderr=True).status(f"reading {args.source}"):
        try:
            trace, left_out = readers[args.kind]()
        except (ConfigError, OSError, ValueError) as error:
            raise CommandError(str(error)) from error
    with begun(args.out) as file:
        own_jsonl.write(trace, file)
    sys.stdout.write(summary(trace, args.out, 0) + _notes(trace, left_out))
    return 0


def _notes(trace: Trace, left_out: int) -> str:
    """What is guessed, and what was left out."""
    followed = sum(1 for request in trace.requests if request.parent is not None)
    lines = [f"{followed:,} requests go on from another; sessions are inferred from that"]
    if left_out:
        lines.append(f"left out: {left_out:,} whose prompts are not shown, or could not be read")
    if Fact.DURATIONS not in trace.facts:
        lines.append("it is not known how long requests took: follow-ups come at their own times")
    return "\n".join(lines) + "\n"
