"""Claude Code sessions as callanjfox/kv-cache-tester recorded them: one JSON object a session, 64-token whole blocks.

Both forms are read: the original (one session a file; `load` takes a directory of them) and the compacted (one session
a line, ids as runs, shorter keys). Subagents nest in a session's requests, their times relative to their marker; each
becomes a session of its own, because its prompt shares nothing with the session that started it, and its first request
follows the one before the marker.

Ids are local to a session: they are renamed apart, except that the ids of tools and system prompt become common to
all sessions that have equally many tokens of both. Sessions begin at 0: when they began, the recording does not say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as shortened
from typing import Annotated, Literal

import msgspec

from loadgen.workloads.trace import Fact, Runs, TraceRequest, Trigger, common, joined, length
from loadgen.workloads.traces import nominal
from loadgen.workloads.traces.lines import Count, Length, Seconds, TraceError, decode, lines, named, title
from loadgen.workloads.traces.parsed_trace import Fields, Place, Recording

NAME = "claude-code"
TITLE = "Claude Code sessions (kv-cache-tester), original or compacted"
FACTS = frozenset(Fact) - {Fact.ARRIVALS, Fact.INFERRED_SESSIONS}
FIELDS = Fields(id="id", parent="requests", time="t", input="in", gap="t", duration="api_time")
DEEPEST = 16  # subagents within subagents; Claude Code's start none
BlockId = Annotated[int, msgspec.Meta(ge=1)]


class Entry(msgspec.Struct, kw_only=True):
    """A request, or a subagent with its requests, in either form."""

    t: Seconds
    input: Count | None = msgspec.field(name="in", default=None)
    out: Count = 0
    trig: Trigger | None = None
    input_types: Sequence[str] = ()
    api: Seconds | None = None
    api_time: Seconds | None = None
    h: list[tuple[BlockId, Length]] | None = None
    hash_ids: list[BlockId] | None = None
    reqs: list[Entry] | None = None
    requests: list[Entry] | None = None


class Session(msgspec.Struct, kw_only=True):
    """One line or file."""

    id: str
    block_size: Length
    hash_id_scope: Literal["local"] = "local"
    tool_tokens: Count = 0
    system_tokens: Count = 0
    reqs: list[Entry] | None = None
    requests: list[Entry] | None = None


def recognises(keys: Mapping[str, object]) -> bool:
    """Whether the first line is one of this format."""
    return "block_size" in keys and bool({"reqs", "requests"} & keys.keys())


def read(path: Path) -> Recording:
    """Of a file, or of all .json files in a directory. Raises TraceError."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise TraceError(path, None, "no .json file in this directory; expected Claude Code sessions, one a file")
    decoder = msgspec.json.Decoder(Session)
    names = _Names()
    requests: list[tuple[Place, TraceRequest]] = []
    sessions: set[str] = set()
    block_size: int | None = None
    for file in files:
        for number, text in lines(file):
            session = decode(decoder, file, number, text)
            block_size = block_size or session.block_size
            if session.block_size != block_size:
                raise TraceError(file, number, f"expected {block_size} as before", "block_size")
            if session.id in sessions:
                raise TraceError(file, number, f"expected one that no other has, got {shortened(session.id)}", "id")
            sessions.add(session.id)
            place = Place(file, number)
            requests += [(place, request) for request in _Reader(file, number, session, names).all()]
            names.next_session()
    return Recording(title(path), block_size or 1, requests, FACTS, FIELDS)


@dataclass(slots=True)
class _Names:
    """Names that are unique in the trace."""

    free: int = 0  # the first that no session has
    base: int = 0  # added to a session's ids
    shared: dict[tuple[int, int], int] = field(default_factory=dict)  # (tool, system tokens) -> the first common name

    def next_session(self) -> None:
        self.base = self.free

    def prompt(self, local: Runs, system: tuple[int, int], blocks: int) -> Runs:
        """Rename a prompt's ids; those from 1 to `blocks` are the system prompt's."""
        if system not in self.shared:
            self.shared[system] = self.free
            self.free += blocks
            self.base = self.free
        renamed: list[tuple[int, int]] = []
        for first, count in local:
            own = max(first, blocks + 1)
            if first < own:
                renamed.append((self.shared[system] + first - 1, min(count, own - first)))
            if first + count > own:
                renamed.append((self.base + own, first + count - own))
            self.free = max(self.free, self.base + first + count)
        return tuple(renamed)


@dataclass(slots=True)
class _Reader:
    path: Path
    line: int
    session: Session
    names: _Names

    def all(self) -> Iterator[TraceRequest]:
        """The session's requests and its subagents'."""
        entries = self.session.requests if self.session.reqs is None else self.session.reqs
        if entries is None:
            raise TraceError(self.path, self.line, "missing; expected a list", "requests")
        one = self.session
        return self._stream(one.id, entries, 0.0, one.tool_tokens + one.system_tokens, None)

    def _stream(
        self,
        session: str,
        entries: list[Entry],
        start_s: float,
        system: int,
        parent: TraceRequest | None,
        depth: int = 0,
    ) -> Iterator[TraceRequest]:
        previous: TraceRequest | None = None
        agents = 0
        for index, entry in enumerate(sorted(entries, key=lambda entry: entry.t)):
            nested = entry.requests if entry.reqs is None else entry.reqs
            if nested is not None:
                agents += 1
                if depth == DEEPEST:
                    raise TraceError(self.path, self.line, f"expected subagents at most {DEEPEST} deep", "requests")
                absolute = min((one.t for one in nested), default=0.0) >= entry.t  # as in SemiAnalysis's editions
                begin_s = start_s if absolute else start_s + entry.t
                yield from self._stream(f"{session}/{agents}", nested, begin_s, 0, previous or parent, depth + 1)
                continue
            previous = self._request(f"{session}:{index}", session, entry, start_s, system, previous, parent)
            yield previous

    def _request(
        self,
        name: str,
        session: str,
        entry: Entry,
        start_s: float,
        system: int,
        previous: TraceRequest | None,
        parent: TraceRequest | None,
    ) -> TraceRequest:
        if not entry.input:
            raise TraceError(self.path, self.line, "missing or 0; expected the prompt's tokens", f"{name}.in")
        blocks = self._blocks(name, entry)
        arrival_s = start_s + entry.t
        before = previous or parent
        turn, trigger = _turn(entry, blocks, previous)
        if previous is None and parent is not None:
            trigger = Trigger.AGENT  # recorded as the user's, but it is the agent that started this one
        return TraceRequest(
            id=name,
            session=session,
            turn=turn,
            arrival_s=arrival_s,
            input=entry.input,
            output=max(1, entry.out),
            blocks=blocks,
            parent=None if before is None else before.id,
            trigger=trigger,
            gap_s=None if before is None else max(0.0, arrival_s - nominal.end(before)),
            duration_s=entry.api_time if entry.api is None else entry.api,
            system=min(system, entry.input),
            history=min(entry.input, previous.input + previous.output) if turn and previous else 0,
        )

    def _blocks(self, name: str, entry: Entry) -> Runs:
        one = self.session
        compacted = entry.h is not None
        local = tuple(entry.h or ()) if compacted else joined(entry.hash_ids or ())
        named(
            self.path,
            self.line,
            f"{name}.{'h' if compacted else 'hash_ids'}",
            length(local),
            (entry.input or 0) // one.block_size,
            part=False,
        )
        shared = (one.tool_tokens + one.system_tokens) // one.block_size
        return self.names.prompt(local, (one.tool_tokens, one.system_tokens), shared)


def _turn(entry: Entry, blocks: Runs, previous: TraceRequest | None) -> tuple[int, Trigger | None]:
    """A prompt that is shorter than the one before and carries less than half of it began anew: a compaction."""
    trigger = entry.trig
    if trigger is None:
        trigger = Trigger.USER if "text" in entry.input_types else Trigger.AGENT
    if previous is None:
        return 0, trigger
    carried = common(blocks, previous.blocks)
    if (entry.input or 0) < previous.input and 2 * carried < length(previous.blocks):
        return 0, Trigger.COMPACTION
    return previous.turn + 1, trigger
