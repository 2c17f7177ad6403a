"""Shadow policies: what others would have chosen for the same request, without acting on it.

An operator reads from the metrics how often a policy agrees with the acting one, and how many cached bytes its choices
would have found, before switching. What the caches hold is the acting policy's doing, so the figure is a first-order
one: a policy that keeps sessions elsewhere would also have cached them elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from extproc.routing.policies import View, registry

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opinion:
    """One shadow policy's choice: whether it is the acting one's, and how many bytes of the prompt it finds cached."""

    policy: str
    agrees: bool
    hit: int


def opinions(shadows: Mapping[str, Mapping[str, float]], view: View, chosen: int) -> tuple[Opinion, ...]:
    """The opinions of policies (name -> options) on a view of which candidate `chosen` was taken.

    A policy that fails has none, and a line in the log.
    """
    found: list[Opinion] = []
    for name, options in shadows.items():
        try:
            candidate = registry.get(name)(view, **options).candidate
        except Exception:
            _log.exception("a bug in shadow policy %s; it has no opinion on this request", name)
            continue
        found.append(Opinion(name, candidate == chosen, view.hits[candidate]))
    return tuple(found)
