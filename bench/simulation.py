"""What a simulation costs, and how that grows: `python -m bench.simulation`.

32 instances, SMetric, the paper's workload at 8 requests a second, near the knee; the target is 15 simulated minutes of
it, about 7,000 requests of 40,000 tokens, in 20 s of one core and 1 GB. Each run has a process of its own and is timed
in seconds of its core, so that neither memory nor other work of the machine is counted; making the workload is not.
"""

from __future__ import annotations

import multiprocessing
import resource
import time

from loadgen.simulation import simulate, workload
from loadgen.simulation.scenario import Scenario

RATE = 8.0  # requests a second
TARGET_S = 900.0  # simulated
REQUESTS = (2_000, 4_000, 8_000)


def run(seconds: float) -> tuple[int, float, float]:
    """Requests, seconds of one core, peak of the resident memory in MB."""
    scenario = Scenario(rate=RATE, warmup_s=0.0, measure_s=seconds)
    trace = workload(scenario)
    started = time.process_time()
    rows = simulate(scenario, trace)
    taken = time.process_time() - started
    return len(rows), taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    print("simulated s  requests  core s  ms a request  peak RSS MB")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as fresh:
        lengths = sorted([TARGET_S, *(count / RATE for count in REQUESTS)])
        for seconds, (requests, taken, memory) in zip(lengths, fresh.imap(run, lengths, 1), strict=True):
            print(f"{seconds:11.0f} {requests:9} {taken:7.2f} {1000 * taken / requests:13.2f} {memory:12.0f}")


if __name__ == "__main__":
    main()
