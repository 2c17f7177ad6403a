"""A cluster on a virtual clock: the product's router, policies, loads and in-memory index, before modelled instances.

    keys.py            names of a trace's blocks -> keys of a request's prompt and reply
    instance.py        the live engine's scheduler over these caches
    product_router.py  the real router, and the index that the instances' events feed
    cluster.py         the event loop
    caches.py          the caches of the instances, and of the cluster, as arrays
    workload.py        what a scenario's requests are
    run_info.py        what a run says of itself
    feasibility.py     which scenarios can be simulated

Same scenario, same rows: nothing here reads a clock or an unseeded random number.
"""

from __future__ import annotations

from loadgen.simulation.cluster import DRAIN_S, ImpossibleScenario, simulate
from loadgen.simulation.feasibility import UnfitValue, check
from loadgen.simulation.run_info import idle, info, label, off
from loadgen.simulation.workload import LeftOut, as_recorded, content, prepared, workload

__all__ = [
    "DRAIN_S",
    "ImpossibleScenario",
    "LeftOut",
    "UnfitValue",
    "as_recorded",
    "check",
    "content",
    "idle",
    "info",
    "label",
    "off",
    "prepared",
    "simulate",
    "workload",
]
