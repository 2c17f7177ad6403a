"""The pools of instances: what configuration says of each, and which instances may be chosen at the moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from extproc import blocks
from extproc.admission import Subset
from extproc.agreement import Agreement
from extproc.model import Instance, Role, Source
from extproc.prompt import PromptRenderer
from extproc.routed import Speculation

# How long an instance that Envoy could not reach is left alone before one more request tries it. Long enough that a
# dead instance, idle and so the least loaded, costs few requests a retry; short enough that a restart is soon used.
SUSPECT_S = 5.0


@dataclass(slots=True)
class Pool:
    """One Envoy cluster. Its instances change as DNS and EDS do; what configuration says of it does not."""

    name: str
    renderer: PromptRenderer
    models: frozenset[str] = frozenset()  # names of the base model; empty: any that is no known adapter
    block_bytes: int = blocks.DEFAULT_SIZE
    source: Source = Source.EVENTS
    instances: Sequence[Instance] = ()
    cursor: int = 0  # where the next round robin goes
    decode_cursor: int = 0  # the same, over the instances that decode for others
    speculation: Speculation = field(default_factory=Speculation)
    agreement: Agreement = field(default_factory=Agreement)
    _suspects: dict[str, float] = field(default_factory=dict)  # address -> when to trust it again

    @property
    def disaggregated(self) -> bool:
        """Whether an instance does only one half of the work."""
        return any(instance.role is not Role.BOTH for instance in self.instances)

    def candidates(self, now: float, subset: Subset | None = None) -> Sequence[Instance]:
        """Whom to choose from, within a subset if there is one: all but the unreachable, or all where none is left."""
        members = self.instances if subset is None else subset.of(self.instances)
        if not self._suspects:
            return members
        self._suspects = {address: until for address, until in self._suspects.items() if until > now}
        return [i for i in members if i.address not in self._suspects] or members

    def reached(self, chosen: Instance, served: str, now: float) -> bool:
        """Learn which host answered. False where it was not the chosen one, which is then left alone for a while."""
        self._suspects.pop(served, None)
        if served == chosen.address:
            return True
        self.suspect(chosen, now)
        return False

    def left_alone(self, now: float) -> Mapping[str, float]:
        """Addresses of the instances that are not chosen because Envoy could not reach them, with the seconds left."""
        return {address: until - now for address, until in self._suspects.items() if until > now}

    def suspect(self, instance: Instance, now: float) -> None:
        """Leave an instance alone for a while."""
        self._suspects[instance.address] = now + SUSPECT_S
