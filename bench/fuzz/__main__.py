"""Change inputs of a corpus by chance, and see whether anything breaks: `python -m bench.fuzz`.

Each target is what reads bytes that others wrote: request bodies, engines' events, Redis's values, Envoy's messages,
YAML. It promises to raise nothing and to be quick; what breaks that is written to --findings, one file each, and named.
Inputs are made from the files in tests/fuzz/corpus/TARGET by cutting, joining, bending and repeating them; a finding
that is mended belongs there. Equal seeds give equal inputs.

  python -m bench.fuzz --inputs 100000                       so many in each target
  python -m bench.fuzz --target bodies --target frames       some of them
  python -m bench.fuzz --inputs 1000000 --processes 2 --seed 7

The last line is the sum. The exit status is 1 when something was found.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from bench.fuzz.mutate import inputs
from bench.fuzz.targets import TARGETS

CORPUS = Path(__file__).parents[2] / "tests" / "fuzz" / "corpus"
KEPT = 20  # findings of one target: more say nothing new


@dataclass(slots=True)
class Tried:
    """What one process did in one target. `found` maps a finding's words to its input."""

    target: str
    inputs: int
    seconds: float
    slowest_s: float
    found: dict[str, bytes] = field(default_factory=dict)


def corpus(target: str) -> Sequence[bytes]:
    """The inputs to begin with."""
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


def fuzz(target: str, count: int, seed: int) -> Tried:
    """Try so many inputs, the corpus first."""
    chosen, known = TARGETS[target], corpus(target)
    attempt = chosen.make()
    tried = Tried(target, count, 0.0, 0.0)
    made = inputs(known, seed)
    began = time.monotonic()
    for number in range(count):
        data = known[number] if number < len(known) else next(made)
        before = time.thread_time()
        try:
            attempt(data)
        except Exception as error:  # which is what is looked for
            _note(tried, _words(error), data)
        took = time.thread_time() - before
        tried.slowest_s = max(tried.slowest_s, took)
        if took > chosen.slow_s:
            _note(tried, f"slow: {took:.2f} s of CPU", data)
    tried.seconds = time.monotonic() - began
    return tried


def _note(tried: Tried, words: str, data: bytes) -> None:
    if words not in tried.found and len(tried.found) < KEPT:
        tried.found[words] = data


def _words(error: Exception) -> str:
    """What tells one fault from another: the error, and where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


def _work(job: tuple[str, int, int]) -> Tried:
    logging.disable(logging.CRITICAL)  # parsers say much of what they refuse
    return fuzz(*job)


def main() -> int:
    """Run them; 1 when something was found."""
    options = _options()
    targets = options.target or list(TARGETS)
    found = total = 0
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for target in targets:
            wanted = max(options.processes, round(options.inputs * TARGETS[target].share))
            portion = min(options.portion, -(-wanted // options.processes))
            jobs = [(target, portion, options.seed * 1_000_003 + number) for number in range(-(-wanted // portion))]
            worst, seconds, count, kinds = 0.0, 0.0, 0, dict[str, bytes]()
            for tried in pool.imap_unordered(_work, jobs):
                worst, seconds, count = max(worst, tried.slowest_s), seconds + tried.seconds, count + tried.inputs
                for words, data in tried.found.items():
                    if words not in kinds:
                        kinds[words] = data
                        print(f"FOUND in {target}: {words} ({_kept(options.findings, target, data)})", flush=True)
            found, total = found + len(kinds), total + count
            rate = count / seconds if seconds else 0.0
            print(
                f"{target:10} {count:>11,} inputs, {rate:>8,.0f} a second and process, slowest {worst * 1000:.1f} ms, "
                f"{len(kinds)} findings",
                flush=True,
            )
    print(f"{total:,} inputs in {time.monotonic() - began:,.0f} s, {found} findings")
    return 1 if found else 0


def _kept(directory: Path, target: str, data: bytes) -> Path:
    """Where a finding's input was written."""
    path = directory / target / sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    names = ", ".join(f"{name} ({target.about})" for name, target in TARGETS.items())
    add("--target", action="append", choices=list(TARGETS), metavar="NAME", help=f"may be given again: {names}")
    add(
        "--inputs",
        type=int,
        default=100_000,
        metavar="N",
        help="for each target, fewer for the slow ones (%(default)s)",
    )
    add("--processes", type=int, default=2, metavar="N", help="(%(default)s)")
    add("--seed", type=int, default=0, help="(%(default)s)")
    add("--portion", type=int, default=20_000, help="inputs of one seed in one process (%(default)s)")
    add("--findings", type=Path, default=Path("out/fuzz"), metavar="DIR", help="where inputs are kept (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
