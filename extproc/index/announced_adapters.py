"""Which instances of one pool announced which LoRA adapters. Knows names, and nothing of blocks.

Adapters are an instance's own: what one announces says nothing of the others, and never makes room among theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set


class Adapters:
    """What every instance announced last: the whole of its list, each time."""

    def __init__(self) -> None:
        self._names: dict[str, frozenset[str]] = {}  # by instance
        self._instances: dict[str, set[str]] = {}  # by adapter

    @property
    def instances(self) -> Mapping[str, Set[str]]:
        """By adapter, who announced it; an adapter that nobody has is absent."""
        return self._instances

    @property
    def announcers(self) -> Set[str]:
        """The instances that announced any."""
        return self._names.keys()

    def tell(self, instance: str, names: Iterable[str]) -> None:
        """These are all adapters of an instance."""
        before = self._names.get(instance, frozenset())
        after = frozenset(names)
        for name in after - before:
            self._instances.setdefault(name, set()).add(instance)
        for name in before - after:
            who = self._instances[name]
            who.discard(instance)
            if not who:
                del self._instances[name]
        if after:
            self._names[instance] = after
        else:
            self._names.pop(instance, None)
