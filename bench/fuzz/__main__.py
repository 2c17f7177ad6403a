"""Change inputs of a corpus by chance, and see whether anything breaks: `python -m bench.fuzz`.

Each target is what reads bytes that others wrote: request bodies, engines' events, Redis's values, Envoy's messages,
YAML. It promises to raise nothing and to be quick; what breaks that is written to --findings, one file each, and named.
Inputs are made from the files in tests/fuzz/corpus, a folder a target, by cutting, joining, bending and repeating them;
a finding that is mended belongs there. Equal seeds give equal inputs.

  python -m bench.fuzz --inputs 100000                       so many in each target
  python -m bench.fuzz --target bodies --target frames       some of them
  python -m bench.fuzz --inputs 1000000 --processes 2 --seed 7

The last line is the sum, also of what was done until Ctrl-C. The exit status is 1 when something was found.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from bench.fuzz.targets import TARGETS
from bench.fuzz.trial import Tried, work


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
            for tried in _until_interrupted(pool.imap_unordered(work, jobs)):
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


def _until_interrupted(results: Iterator[Tried]) -> Iterator[Tried]:
    """Ctrl-C ends a target, and what it came to so far counts."""
    with contextlib.suppress(KeyboardInterrupt):
        yield from results


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
