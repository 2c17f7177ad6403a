"""How evenly a trace's requests could be spread, whatever they reuse: the paper's figure 9 and its requests a minute.

A request goes to the instance with the fewest tokens in flight, prompt and reply of all requests that it runs, and
stays for its recorded duration (a nominal one where none is). Of equals, the one that waited longest for a request.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence

from loadgen.workloads.trace import TraceRequest
from loadgen.workloads.traces import nominal

MINUTE = 60.0  # seconds: the paper's window


def imbalance(requests: Sequence[TraceRequest], instances: int) -> list[float]:
    """For each whole minute with requests: the tokens of those that the hottest instance got / the mean instance's."""
    flying = [0] * instances  # tokens
    used = [-1] * instances  # the number of an instance's last request
    ends: list[tuple[float, int, int]] = []  # end, instance, tokens
    minutes = _whole_minutes(requests)
    got: dict[int, list[int]] = {}
    for number, request in enumerate(requests):
        while ends and ends[0][0] <= request.arrival_s:
            _, instance, tokens = heapq.heappop(ends)
            flying[instance] -= tokens
        chosen = min(range(instances), key=lambda instance: (flying[instance], used[instance]))
        tokens = request.input + request.output
        flying[chosen] += tokens
        used[chosen] = number
        heapq.heappush(ends, (nominal.end(request), chosen, tokens))
        minute = _minute(requests, request)
        if minute < minutes:
            got.setdefault(minute, [0] * instances)[chosen] += tokens
    return [max(each) * instances / sum(each) for each in got.values()]


def per_minute(requests: Sequence[TraceRequest]) -> tuple[list[int], int]:
    """Requests that arrived in each whole minute that had some, and how many whole minutes had none."""
    minutes = _whole_minutes(requests)
    counts = Counter(_minute(requests, request) for request in requests)
    busy = [count for minute, count in counts.items() if minute < minutes]
    return busy, minutes - len(busy)


def _whole_minutes(requests: Sequence[TraceRequest]) -> int:
    return int((requests[-1].arrival_s - requests[0].arrival_s) / MINUTE)


def _minute(requests: Sequence[TraceRequest], request: TraceRequest) -> int:
    return int((request.arrival_s - requests[0].arrival_s) / MINUTE)
