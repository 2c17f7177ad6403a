"""What bodies cost to read, and for how long the event loop is held by each: a body that is dear is read beside it.

    python -m bench.reading [--megabytes 0.0625] [--model-dir DIR]

One row a body: its size, the CPU time of reading it whole (parsing, rendering, hashing), and what the loop spends on
it: all of that where it is read `here`, and otherwise what it takes to see that it is to be read `beside` the loop.
No row may hold the loop for 20 ms, at any size, with any chat template: `--model-dir` tries another one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from bench.chaos.attacks.bodies import CHAT, KINDS
from extproc.base.errors import TakesLong
from extproc.prompts.renderer import Renderer
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask
from extproc.routing.reading import MOST_US, at_once
from loadgen.engine.options import MODEL_DIR

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 3  # the quickest counts: the machine may have other work


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m bench.reading", description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=0.0625, metavar="N", help="of each body (%(default)s)")
    parser.add_argument("--model-dir", type=Path, default=MODEL_DIR, help="whose chat template (%(default)s)")
    options = parser.parse_args()
    pool = Pool("bench", Renderer.load(options.model_dir))

    def here(ask: Ask) -> bool:
        try:
            at_once([pool], lambda _: {}, ask, MOST_US)
        except TakesLong:
            return False
        return True

    print(f"{'body':30} {'size':>9} {'whole reading':>14} {'the loop':>9}")
    kinds: Mapping[str, tuple[str, Callable[[int], bytes]]] = {"an agent's session": (CHAT, _agent), **KINDS}
    for name, (path, make) in kinds.items():
        ask = Ask(path, make(round(options.megabytes * 2**20)))
        whole, held = _cpu_ms(partial(at_once, [pool], lambda _: {}, ask)), _cpu_ms(partial(here, ask))
        where = "here" if here(ask) else "beside"
        print(f"{name:30} {len(ask.body or b'') / 1000:6.0f} KB {whole:11.1f} ms {held:6.1f} ms  {where}", flush=True)


def _cpu_ms(work: Callable[[], object]) -> float:
    def once() -> float:
        begun = time.thread_time()
        work()
        return (time.thread_time() - begun) * 1000

    return min(once() for _ in range(ROUNDS))


def _agent(size: int) -> bytes:
    """What agents send: code and tools' output in a few kilobytes a message."""
    text = (ROOT / "extproc" / "routing" / "router.py").read_text()[:4000]
    said = [{"role": role, "content": text} for role in ("user", "assistant")] * (size // 8600 + 1)
    return json.dumps({"messages": [*said, {"role": "user", "content": "go on"}]}).encode()


if __name__ == "__main__":
    main()
