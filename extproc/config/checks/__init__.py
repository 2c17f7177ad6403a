"""The traps that `check` knows: one small function each, beside others about the same part of Envoy.

A check yields problems and changes nothing. A new one is a function in one of these modules, listed in its CHECKS.
What a message says will happen was measured on Envoy 1.40 (docs/drop-into-your-envoy.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from extproc.config.checks import clusters, filters, listeners, metadata, models, processing, rewrites, routes, spelling
from extproc.config.report import Problem
from extproc.config.settings import PoolSettings
from extproc.config.topology import Topology

Check = Callable[[Topology, Mapping[str, PoolSettings]], Iterator[Problem]]

POOL_CHECKS: tuple[Check, ...] = metadata.CHECKS  # of what the pools' metadata says together
CHECKS: tuple[Check, ...] = (
    *filters.CHECKS,
    *processing.CHECKS,
    *listeners.CHECKS,
    *routes.CHECKS,
    *rewrites.CHECKS,
    *models.CHECKS,
    *clusters.CHECKS,
    *spelling.CHECKS,
)
