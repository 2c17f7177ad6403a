"""What a policy's choice costs, by the number of instances: medians of 200 choices on one random view."""

from __future__ import annotations

import random
import statistics
import time

from extproc.routing.policies import View, registry

SIZES = (32, 256, 1024)


def view(instances: int) -> View:
    """A follow-up whose history some instances hold in part, under varying load."""
    rng = random.Random(1)
    hits = [rng.choice((0, 0, 20_480, rng.randrange(400_000))) for _ in range(instances)]
    loads = [rng.randrange(30) for _ in range(instances)]
    return View(
        3,
        300_000,
        400_000,
        hits,
        loads,
        7,
        [rng.randrange(10**6) for _ in range(instances)],
        seed=5,
        waits=[rng.random() for _ in hits],
    )


def milliseconds(policy: str, on: View) -> float:
    choose, seconds = registry.get(policy), []
    for _ in range(200):
        started = time.perf_counter()
        choose(on)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1000


def main() -> None:
    print(f"{'policy':<24}" + "".join(f"{size:>8}" for size in SIZES) + "  instances")
    for name in registry.names():
        print(f"{name:<24}" + "".join(f"{milliseconds(name, view(size)):>8.3f}" for size in SIZES) + "  ms")


if __name__ == "__main__":
    main()
