"""Every fault that the project knows, by name, in the order of this table. `FAULTS[name](world)` inflicts one.

A fault is an async context manager: entered, it is there; left, its cause is gone, and recovery begins.
"""

from __future__ import annotations

from bench.chaos.faults import engines, events, peers, pool, redis, router
from bench.chaos.faults.fault import Fault

FAULTS = {fault.name: fault for part in (engines, router, redis, events, peers, pool) for fault in part.FAULTS.all}

__all__ = ["FAULTS", "Fault"]
