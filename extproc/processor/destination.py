"""A decision as Envoy sees it: the headers and the dynamic metadata that name the destination and explain the choice.

The destination follows the Endpoint Picker Protocol (Gateway API Inference Extension, proposal 004): one list, the
choice first and fallbacks after it, in a header and in dynamic metadata. In the Envoy configuration that we ship only
the metadata steers, because a client can send the header too; it is overwritten for gateways that read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from extproc.base.headers import DESTINATION, EXPLANATION, NAMESPACE, POOL, PREFILLER, RANK
from extproc.base.model import Choice, Reason
from extproc.processor.messages import Mutation

_NONE: Final[Mapping[str, str | float]] = MappingProxyType({})


def to(
    choice: Choice,
    decision_ms: float,
    *,
    sidecar: bool = True,
    pool: str | None = None,
    digests: Mapping[str, str | float] = _NONE,
) -> Mutation:
    """Send the request to the choice; `decision_ms` is how long the decision took.

    `sidecar`: one in front of the destination is to have the prompt prefilled, where the choice says who does that.
    `pool`: the chosen one of several; Envoy then chooses the route again, which leads to that cluster.
    `digests`: of the prompt, for the access log (`routing/digests.py`).
    """
    destinations = ",".join(dict.fromkeys(instance.address for instance in (choice.instance, *choice.fallbacks)))
    headers = {DESTINATION: destinations}
    explanation: dict[str, str | float] = {
        "instance": choice.instance.address,
        "policy": choice.policy,
        "reason": choice.reason.value,
        "turn": choice.turn,
        "hit_bytes": choice.hit,
        "best_hit_bytes": choice.best_hit,
        "history_bytes": choice.history,
        "prompt_bytes": choice.prompt,
        "load": choice.load,
        "mean_load": round(choice.mean_load, 3),
        "decision_ms": round(decision_ms, 3),
        **digests,
    }
    if choice.prefill is not None:
        explanation["prefill_instance"] = choice.prefill.name
        if sidecar:
            headers[PREFILLER] = choice.prefill.address
    if choice.instance.rank is not None:
        headers[RANK] = str(choice.instance.rank)
        explanation["rank"] = choice.instance.rank
    if pool is not None:
        headers[POOL] = explanation["pool"] = pool
    strange = tuple(name for name in (RANK, PREFILLER) if name not in headers)  # a client's own, that is
    lb: dict[str, str | float] = {DESTINATION: destinations}
    return Mutation(headers, strange, {NAMESPACE: lb, EXPLANATION: explanation}, new_route=pool is not None)


def nowhere(reason: Reason) -> Mutation:
    """Name no destination: Envoy's own policy decides, and a destination that the client sent does not count."""
    return Mutation(remove_headers=(DESTINATION, RANK, PREFILLER), metadata={EXPLANATION: {"reason": reason.value}})
