"""The pools of instances: what configuration says of each, and which instances may be chosen at the moment."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from extproc.base import blocks
from extproc.base.facts import Fact
from extproc.base.model import Instance, Role, Source
from extproc.prompts.renderer import PromptRenderer
from extproc.requests.beginnings import Beginnings
from extproc.routing.pools.admission import Subset
from extproc.routing.pools.ejections import Ejections
from extproc.routing.pools.few_shot import FewShot
from extproc.routing.pools.mismatch import Agreement
from extproc.routing.pools.prefills import Ended, Prefills
from extproc.routing.pools.speculation import Speculation
from extproc.routing.pools.ties import Ties


@dataclass(slots=True)
class Pool:
    """One Envoy cluster. Its instances change as DNS and EDS do; what configuration says of it does not, but a pool may
    take the place of another (`succeed`)."""

    name: str
    renderer: PromptRenderer
    models: frozenset[str] = frozenset()  # all names of the base model; empty: see routing/lora.py
    block_bytes: int = blocks.DEFAULT_SIZE
    # Of all keys (base/blocks.py): fixed in simulations, drawn at the start, or a shared index's, for which None waits.
    secret: bytes | None = field(default=b"", repr=False)
    source: Source = Source.EVENTS
    instances: Sequence[Instance] = ()
    cursor: int = 0  # the place after the instance that was chosen last: for round robin
    ties: Ties = field(default_factory=Ties)
    few_shot: FewShot = field(default_factory=FewShot)
    speculation: Speculation = field(default_factory=Speculation)
    prefills: Prefills = field(default_factory=Prefills)
    followed: set[str] = field(default_factory=set)  # kinds of media that events were seen to go past
    agreement: Agreement = field(default_factory=Agreement)
    ejections: Ejections = field(default_factory=Ejections)
    beginnings: Beginnings | None = None  # of bodies that were read before; one for all pools of a process
    unhealthy: Set[str] | None = (
        None  # addresses that fail the cluster's health checks; None where it has none to follow
    )

    def succeed(self, other: Pool) -> None:
        """Take over from a pool of the same name what is true of its instances, whatever their prompts look like."""
        self.instances, self.cursor, self.ties = other.instances, other.cursor, other.ties
        self.ejections, self.unhealthy, self.prefills = other.ejections, other.unhealthy, other.prefills

    @property
    def disaggregated(self) -> bool:
        """Whether an instance does only one half of the work."""
        return any(instance.role is not Role.BOTH for instance in self.instances)

    def root(self, lora: str | None = None, salt: str | None = None) -> int:
        """What the keys of a prompt begin with."""
        return blocks.root(self.name, lora, salt, secret=self.secret or b"")

    def tells(self, instance: Instance) -> bool:
        """Whether the instance's events tell how far its prefills are."""
        return self.source is Source.EVENTS and instance.kv_events is not None

    def hear(self, fact: Fact, now: float) -> Sequence[Ended]:
        """An engine spoke: guesses about it end. Returns the prefills that ended by it."""
        self.speculation.hear(fact, now)
        return self.prefills.hear(fact, now)

    def candidates(self, now: float, subset: Subset | None = None) -> Sequence[Instance]:
        """The instances to choose from, within a subset if there is one: the healthy, of these all but the ejected, and
        of these the ones of the lowest priority, as Envoy fails over.

        A step that would leave no instance is not taken, as in Envoy's panic routing.
        """
        members = self.instances if subset is None else subset.of(self.instances)
        if self.unhealthy:
            members = [i for i in members if i.address not in self.unhealthy] or members
        if self.ejections:
            ejected = self.ejections.ejected(now)
            members = [i for i in members if i.address not in ejected] or members
        first = min((i.priority for i in members), default=0)
        return [i for i in members if i.priority == first] if any(i.priority != first for i in members) else members

    def standby(self, candidates: Sequence[Instance], now: float, subset: Subset | None = None) -> Sequence[Instance]:
        """The instances that serve where no candidate does: those of higher priorities, the lowest of these first."""
        first = candidates[0].priority
        if all(i.priority <= first for i in self.instances):
            return ()
        members = self.instances if subset is None else subset.of(self.instances)
        away = (self.unhealthy or set()) | self.ejections.ejected(now).keys()
        spare = [i for i in members if i.priority > first and i.address not in away and i.role is not Role.PREFILL]
        return sorted(spare, key=lambda instance: instance.priority)

    def reached(self, chosen: Instance, served: str, now: float, *, erred: bool = False) -> bool:
        """Learn which host answered, and whether by an error of its own.

        False where it was not the chosen one, which is then ejected.
        """
        if erred or served != chosen.address:
            self.ejections.forget_all_but({instance.address for instance in self.instances})
        if erred:
            self.ejections.erred(served, now)
        else:
            self.ejections.cleared(served)
        if served == chosen.address:
            return True
        self.ejections.unreachable(chosen.address, now)
        return False
