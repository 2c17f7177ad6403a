"""Whether a request's model is a LoRA adapter, and on which instances. Pure.

Engines put an adapter's name into the hash of every block, so the same text under the base model and under an adapter
are two prompts. A name of the base model (`models`) is never an adapter's, whatever an engine announces. Where `models`
is given, every other name is an adapter's, announced or not: an engine that knows it as neither answers 404. Where it
is not given, each engine's own announcements say what the name means there, and nothing of what it means elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

from extproc.routing.pools.pool import Pool

Announced = Mapping[str, Set[str]]  # by adapter, the names of the instances that announced it

NOWHERE: frozenset[str] = frozenset()


class Roots(NamedTuple):
    """The seeds of a prompt's chains."""

    root: int
    base: int | None = None  # on instances that are not `loaded`; None where the model means the same on all
    loaded: frozenset[str] = NOWHERE  # names of the instances where the model is an adapter


def roots(pool: Pool, announced: Announced, model: str | None, salt: str | None) -> Roots:
    """What the chains of a prompt for this model begin with."""
    base = pool.root(None, salt)
    if not model or model in pool.models:
        return Roots(base)
    adapter = pool.root(model, salt)
    if pool.models:
        return Roots(adapter)
    who = announced.get(model)
    if not who:
        return Roots(base)
    # The ranks of one server have the same adapters, whichever of them computed for it first.
    addresses = {instance.address for instance in pool.instances if instance.name in who}
    loaded = frozenset(instance.name for instance in pool.instances if instance.address in addresses)
    if len(loaded) == len(pool.instances):
        return Roots(adapter)
    return Roots(adapter, base, loaded) if loaded else Roots(base)


def refused(pool: Pool, announced: Announced) -> Mapping[str, Set[str]]:
    """Names of the base model that engines announced as an adapter's, with the instances that did."""
    return {model: announced[model] for model in sorted(pool.models) if announced.get(model)}
