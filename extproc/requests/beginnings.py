"""Beginnings of bodies that were read before: a follow-up repeats its session's messages, and only the rest is parsed.

Owns what is remembered, by content alone: whoever sends the same bytes up to the end of a message has sent the same
messages, whatever its name. What follows them is parsed as it stands, so the document is the very one that
`bodies.document` gives; in every doubt that one reads all of it. Bounded in bytes: what was used longest ago goes
first. Refuses to know APIs, but for the names of the lists that grow.

A beginning is found by the keys of its whole pieces, chained from a secret as the keys of prompt blocks are, and by the
bytes behind them. It is kept from the second body on that begins so: most requests that come once would cost for
nothing.
"""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from extproc.base import blocks
from extproc.requests.bodies import document

PIECE: Final = 8 << 10  # bytes; a shorter body is parsed in no time
SEEN: Final = 1 << 14  # beginnings that came once; some megabytes of numbers
LISTS: Final = ("messages", "input", "prompt")  # of chats, of responses, of completions by token ids
# Last entries that are not kept: clients move cache markers over them from turn to turn, or try the last one again.
CHANGING: Final = 3
# Bytes that Python takes beside a text's own, twice where it is normalised: for an object, and for an entry.
_OBJECT_BYTES, _ENTRY_BYTES = 400, 64
_WIDEST = 4  # bytes of a character, in a text in which one is beyond the Basic Multilingual Plane
_WHITE = b" \t\n\r"


class _Place(NamedTuple):
    """How a beginning is found: the key of its whole pieces, and what is behind them."""

    key: int
    tail: bytes


@dataclass(slots=True)
class _Beginning:
    place: _Place
    end: int  # in the body, behind an entry of the list
    name: str  # of the list
    entries: Sequence[Any]
    fields: Mapping[str, Any]  # that came before the list
    cost: int  # bytes
    read: Sequence[Any] = ()  # what was made of the entries; of all of them or of none


class Known(list[Any]):
    """A list whose first entries are remembered, with what a reader made of them."""

    def __init__(self, entries: Sequence[Any], beginning: _Beginning, read: Sequence[Any]) -> None:
        super().__init__(entries)
        self.read = read  # of the first entries
        self._beginning = beginning

    def keep(self, read: Sequence[Any]) -> None:
        """Remember what was made of the entries, one of each."""
        self._beginning.read = read[: len(self._beginning.entries)]


class Beginnings:
    """What one process remembers."""

    def __init__(self, most_bytes: int) -> None:
        """Of 0 bytes nothing is remembered."""
        self.held_bytes = 0
        self._most = most_bytes
        self._seed = secrets.randbits(64)
        self._new = secrets.token_hex(8)  # names the list of new entries: no client knows it
        self._used: OrderedDict[_Place, _Beginning] = OrderedDict()  # the newest last
        self._tails: dict[int, set[bytes]] = defaultdict(set)  # by key
        self._seen: OrderedDict[int, None] = OrderedDict()

    def document(self, body: bytes) -> Any:
        """As `bodies.document`, of a body in any encoding; a list that is remembered, or will be, is `Known`."""
        if len(body) < 2 * PIECE or not self._most or json.detect_encoding(body[:4]) != "utf-8":
            return document(body)
        keys = blocks.extend(body, self._seed, PIECE)
        if (found := self._find(body, keys)) is not None and (given := self._go_on(body, keys, found)) is not None:
            return given
        given = document(body)
        if isinstance(given, dict) and any(map(self._seen.__contains__, keys)):
            self._split(body, keys, given)
        self._see(keys[len(keys) // 2])
        return given

    def _find(self, body: bytes, keys: Sequence[int]) -> _Beginning | None:
        """The longest that this body begins with."""
        for number in range(len(keys), 0, -1):
            tails = self._tails.get(keys[number - 1], ())
            fitting = [tail for tail in tails if body.startswith(tail, number * PIECE)]
            if fitting:
                place = _Place(keys[number - 1], max(fitting, key=len))
                self._used.move_to_end(place)
                return self._used[place]
        return None

    def _go_on(self, body: bytes, keys: Sequence[int], found: _Beginning) -> dict[str, Any] | None:
        """The whole document; None where the list does not go on as one that was not cut would."""
        rest = body[found.end :].lstrip(_WHITE)
        if not rest.startswith(b","):
            return None
        after = b'{"%b":[%b' % (self._new.encode(), rest[1:])
        try:
            fields = msgspec.json.decode(after)
            raw = msgspec.json.decode(after, type=dict[str, msgspec.Raw])[self._new]
        except (msgspec.DecodeError, RecursionError):
            return None
        added = fields.pop(self._new)
        if not added or found.name in fields:
            return None
        entries = [*found.entries, *added]
        kept = found
        if len(added) > CHANGING:
            end = len(body) - len(rest) + len(_without_last(bytes(raw)))
            cost = found.cost + _cost(body[found.end : end])
            kept = self._kept(body, keys, end, found.name, entries, found.fields, cost)
            self._forget(found)
            self._add(kept)
        return {**found.fields, **fields, found.name: Known(entries, kept, found.read)}

    def _split(self, body: bytes, keys: Sequence[int], given: dict[str, Any]) -> None:
        """Remember a body that begins as another one did, where its list can be told from the rest."""
        name = next((name for name in LISTS if isinstance(given.get(name), list)), None)
        if name is None or len(given[name]) <= CHANGING:
            return
        try:
            whole = bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw])[name])
            start = body.find(whole)
            before = msgspec.json.decode(body[:start] + b"[]}")
            after = msgspec.json.decode(b'{"%b":[]%b' % (self._new.encode(), body[start + len(whole) :]))
        except (msgspec.DecodeError, RecursionError):
            return
        others = {key: value for key, value in given.items() if key != name}
        if before.pop(name, None) != [] or name in after or {**before, **after} != {self._new: [], **others}:
            return
        end = start + len(_without_last(whole))
        if end >= PIECE:
            kept = self._kept(body, keys, end, name, given[name], before, PIECE + _cost(body[:end]))
            self._add(kept)
            given[name] = Known(given[name], kept, ())

    def _kept(
        self,
        body: bytes,
        keys: Sequence[int],
        end: int,
        name: str,
        entries: Sequence[Any],
        fields: Mapping[str, Any],
        cost: int,
    ) -> _Beginning:
        pieces = end // PIECE
        place = _Place(keys[pieces - 1], body[pieces * PIECE : end])
        return _Beginning(place, end, name, entries[:-CHANGING], fields, cost)

    def _add(self, beginning: _Beginning) -> None:
        if beginning.place in self._used:
            self._forget(self._used[beginning.place])
        self._used[beginning.place] = beginning
        self._tails[beginning.place.key].add(beginning.place.tail)
        self.held_bytes += beginning.cost
        while self.held_bytes > self._most:
            self._forget(next(iter(self._used.values())))

    def _forget(self, beginning: _Beginning) -> None:
        del self._used[beginning.place]
        tails = self._tails[beginning.place.key]
        tails.discard(beginning.place.tail)
        if not tails:
            del self._tails[beginning.place.key]
        self.held_bytes -= beginning.cost

    def _see(self, key: int) -> None:
        self._seen[key] = None
        self._seen.move_to_end(key)
        if len(self._seen) > SEEN:
            self._seen.popitem(last=False)


def _without_last(array: bytes) -> bytes:
    """A list as JSON up to the end of the last entry that is kept."""
    left = array[:-1]
    for entry in reversed(msgspec.json.decode(array, type=list[msgspec.Raw])[-CHANGING:]):
        left = left.rstrip(_WHITE)[: -len(bytes(entry))].rstrip(_WHITE).removesuffix(b",")
    return left.rstrip(_WHITE)


def _cost(read: bytes) -> int:
    """Bytes of memory that what was read of these bytes takes, estimated upwards."""
    objects = read.count(b"{") + read.count(b"[")
    entries = read.count(b",") + read.count(b":")
    texts = len(read) if read.isascii() and b"\\u" not in read else len(read) * _WIDEST
    return texts + objects * _OBJECT_BYTES + entries * _ENTRY_BYTES
