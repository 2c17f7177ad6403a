"""Makes anew what docs/policy-search.md says: where the published margin appears, and whether a better policy exists.

    cases.py       what is simulated: clusters, workloads, rates, who competes
    tables.py      results -> the document's tables
    candidates/    policies that were tried and are not shipped, each a file as in extproc/routing/policies
    __main__.py    python -m bench.policy_search PART

Importing it makes the candidates known to the product's registry, and variants of the generated workload to the
simulator, in worker processes too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import extproc.routing.policies
from loadgen.workloads.profiles import PAPER_TRACE_1, PROFILES

_CANDIDATES = str(Path(__file__).parent / "candidates")
if _CANDIDATES not in extproc.routing.policies.__path__:
    extproc.routing.policies.__path__.append(_CANDIDATES)

# The same sessions without their forks; with prompts of their own; all with the longest of the shared prompts.
for _name, _change in (
    ("no-forks", {"forks": 0.0}),
    ("private", {"shared": ()}),
    ("one-prompt", {"shared": ((14_500, 1.0),)}),
):
    _variant = replace(PAPER_TRACE_1, name=f"{PAPER_TRACE_1.name}-{_name}", **_change)
    PROFILES[_variant.name] = _variant
