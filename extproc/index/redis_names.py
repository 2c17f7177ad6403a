"""What one router knows of a pool in Redis, kept up to date by the answers of its own matches: names and adapters.

An id in an answer means a holder. The answers bring the meaning of every id that is newer than the newest one known, so
a match needs no second round trip, and between restarts of instances it carries nothing extra.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from extproc.index.announced_adapters import Adapters
from extproc.index.answers import Answers

ID_BYTES = 3  # 16 million incarnations in a pool's life; up to two of them a block cost what one does

# Names kept at most. Instances come and go by the hundred a day in Kubernetes; beyond this it starts empty.
MAX_NAMES = 65_536


class Directory:
    """The instances behind the ids of one pool, and the pool's LoRA adapters."""

    def __init__(self) -> None:
        self.epoch = b""  # of the pool's data: another one means that everything in Redis is new
        self.newest = 0  # every living id up to this one is known
        self.adapters = Adapters()
        self._instances: dict[bytes, str] = {}
        self._ids: dict[bytes, bytes] = {}  # by holder
        self._answers = Answers(self._names, lambda ids: len(ids) // ID_BYTES)

    def read(self, answer: Sequence[Any]) -> Mapping[str, int]:
        """Learn from the answer of `match.lua`; returns the blocks held, by instance name."""
        epoch, newest, holders, adapters, *found = answer
        if epoch != self.epoch or len(self._ids) > MAX_NAMES:
            self._restart(epoch)
        if holders:
            self._learn(holders)
        for holder, names in zip(adapters[::2], adapters[1::2], strict=True):
            self.adapters.tell(instance_of(holder), unpack_names(names))
        self.newest = max(self.newest, newest)
        return self._answers.merge(zip(found[1::2], found[::2], strict=True))

    def learn_adapters(self, lists: Iterable[tuple[bytes, bytes]]) -> None:
        """These holders have announced adapters, and no others have."""
        told = {instance_of(holder): unpack_names(names) for holder, names in lists}
        for instance in self.adapters.announcers - told.keys():
            self.adapters.tell(instance, ())
        for instance, names in told.items():
            self.adapters.tell(instance, names)

    def _restart(self, epoch: bytes) -> None:
        self.epoch, self.newest, self.adapters = epoch, 0, Adapters()
        for known in (self._instances, self._ids):
            known.clear()
        self._answers.clear()

    def _learn(self, holders: Sequence[bytes]) -> None:
        for holder, number in zip(holders[::2], holders[1::2], strict=True):
            try:
                id_ = int(number).to_bytes(ID_BYTES, "big")
            except (ValueError, OverflowError):
                continue  # no script of ours wrote it
            self._instances.pop(self._ids.get(holder, b""), None)
            self._ids[holder] = id_
            self._instances[id_] = instance_of(holder)
            if b"\0" not in holder:
                self.adapters.tell(instance_of(holder), ())  # of this incarnation; what it has comes next
        self._answers.clear()

    def _names(self, ids: bytes) -> list[str]:
        known = self._instances
        parts = (ids[i : i + ID_BYTES] for i in range(0, len(ids), ID_BYTES))
        return [known[id_] for id_ in parts if id_ in known]


def holder_of(instance: str, writer: str) -> bytes:
    """One writer's share of an instance, as Redis names it."""
    return f"{instance}\0{writer}".encode() if writer else instance.encode()


def split(holder: bytes) -> tuple[str, str]:
    """The instance that a holder is a share of, and the writer whose share it is. Never fails: others may write there,
    too, and a name that is none is no instance's."""
    instance, _, writer = holder.decode("utf-8", "replace").partition("\0")
    return instance, writer


def instance_of(holder: bytes) -> str:
    """The instance that a holder is a share of."""
    return split(holder)[0]


def pack_names(names: Sequence[str]) -> bytes:
    """Names as they stand in Redis. One with a NUL, which no engine serves by HTTP, is left out."""
    return "\0".join(name for name in names if "\0" not in name).encode()


def unpack_names(packed: bytes) -> list[str]:
    """What `pack_names` packed."""
    return packed.decode("utf-8", "replace").split("\0") if packed else []
