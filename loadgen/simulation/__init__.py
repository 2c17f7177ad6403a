"""A cluster on a virtual clock: the product's router, policies, loads and in-memory index, before modelled instances.

    keys.py      names of a trace's blocks -> keys of a request's prompt and reply
    instance.py  the instance of the live engine, with a global tier beneath its cache
    gateway.py   the real router, and the index that the instances' events feed
    cluster.py   the event loop

Same scenario, same rows: nothing here reads a clock or an unseeded random number.
"""

from __future__ import annotations

from loadgen.simulation.cluster import ImpossibleScenario, simulate

# from loadgen.simulation.workload import workload

__all__ = ["ImpossibleScenario", "simulate"]
