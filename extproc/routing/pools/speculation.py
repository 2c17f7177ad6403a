"""Hints: where prompts of the last moments went. They bridge the time from a decision to the events of its prefill.

A hint stands beside the index and is never written to it. It ends with the engine's word (`base/facts.py`): as far as
the engine says that the prompt is stored, with all else where the engine lost its cache; and with its time. It counts
only while the index still knows what it was to follow. It knows prompts as chains of keys, and time as seconds.

An answer of the index may be older than what an engine said while it was on its way. So whoever asks the index takes a
mark before, and what was said after that mark is not held against the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from extproc.base.facts import Fact

# Keys of one prompt that are a hint: a million tokens. A follow-up to a longer one comes after minutes of prefill, when
# the engine has spoken; and to note and to forget so many takes milliseconds.
LONGEST = 16_384
# Keys that are forgotten at a time because they are too old: what is left waits for the next call, and counts no more.
FORGOTTEN = 32_768
# Facts that wait because an answer of the index may be older than they are. Picks come more often, or nobody reads.
WAITING = 64


class _Sent:
    """A prompt of which an instance holds `known` blocks, and is about to hold those of `keys` behind them."""

    __slots__ = ("at", "instance", "keys", "known")

    def __init__(self, instance: str, known: int, keys: Sequence[int], at: float) -> None:
        self.instance = instance
        self.known = known
        self.keys = keys
        self.at = at


class Speculation:
    """Where prompts of the last moments went, so that a burst of follow-ups finds them before the engine tells of them.

    Only what the index did not know of a prompt is remembered: at most `capacity_blocks` keys, each for at most `ttl_s`
    seconds. A key belongs to the newest prompt that has it, so only the instance that was chosen last is found.
    """

    def __init__(self, capacity_blocks: int = 262_144, ttl_s: float = 5.0) -> None:
        self._capacity = capacity_blocks
        self._ttl_s = ttl_s
        self._prompts: deque[_Sent] = deque()  # the oldest first
        self._newest: dict[int, _Sent] = {}  # by key
        self._blocks = 0  # in all prompts
        self._spans: dict[str, int] = {}  # of instances whose blocks span more than a prompt block
        self._waiting: deque[tuple[Fact, float]] = deque()  # facts to be taken in, with when they were said
        self._heard = 0  # facts, those that wait among them

    def __len__(self) -> int:
        """Blocks remembered; one of two prompts counts twice."""
        self._take_in(self._heard)
        return self._blocks

    @property
    def mark(self) -> int:
        """What was said until now: for `match`, taken before the index is asked."""
        return self._heard

    def expire(self, now: float) -> None:
        """Forget what is too old; `note` and `match` do so too, but an idle pool calls neither."""
        self._take_in(self._heard)
        self._trim(now)

    def note(self, instance: str, chain: Sequence[int], known: int, now: float) -> None:
        """A prompt was sent, of which the index knew that the instance holds `known` leading blocks.

        What may not fill a block of the engine at the end of the prompt is no hint: nothing may ever be said of it.
        """
        until = min(known + min(self._capacity, LONGEST), len(chain) + 1 - self._spans.get(instance, 1))
        sent = _Sent(instance, known, chain[known : max(known, until)], now)
        if sent.keys:
            self._prompts.append(sent)
            self._blocks += len(sent.keys)
            self._newest.update(dict.fromkeys(sent.keys, sent))
        self._trim(now)

    def match(
        self, chain: Sequence[int], hits: Mapping[str, int], now: float, mark: int | None = None
    ) -> Mapping[str, int]:
        """`hits` of the index, and what was sent meanwhile: leading blocks by instance name.

        The index was asked at `mark`; without it, the answer is taken to be of this moment.
        """
        self._take_in(self._heard if mark is None else mark)
        self._trim(now)
        start = low = max(hits.values(), default=0)
        high = len(chain)
        while low < high:
            middle = (low + high) // 2
            hint = self._newest.get(chain[middle])
            if hint is not None and now - hint.at < self._ttl_s:
                low = middle + 1
            else:
                high = middle
        if low == start:
            return hits
        sent = self._newest[chain[low - 1]]
        if hits.get(sent.instance, 0) < sent.known:
            return hits  # evicted since: what was to follow it follows nothing
        return {**hits, sent.instance: low}

    def hear(self, fact: Fact, now: float) -> None:
        """An engine spoke: what it said is no guess any more."""
        self._waiting.append((fact, now - fact.age_s))
        self._heard += 1
        self._take_in(self._heard - WAITING)

    def _take_in(self, mark: int) -> None:
        """Let hints end by what was said up to a mark."""
        while self._waiting and self._heard - len(self._waiting) < mark:
            self._end(*self._waiting.popleft())

    def _end(self, fact: Fact, said: float) -> None:
        if fact.span > 1:
            self._spans[fact.instance] = fact.span
        if fact.lost:
            for sent in [sent for sent in self._prompts if sent.instance == fact.instance and sent.at <= said]:
                self._advance(sent, len(sent.keys))
        for key in fact.stored:
            spoken_of = self._newest.get(key)
            if spoken_of is not None and spoken_of.instance == fact.instance and spoken_of.at <= said:
                done, whole = spoken_of.keys.index(key) + 1, len(spoken_of.keys)
                self._advance(spoken_of, whole if whole - done <= fact.span else done)

    def _advance(self, sent: _Sent, count: int) -> None:
        """Of a prompt, `count` blocks more are no guess: the index knows them, or nobody does."""
        for key in sent.keys[:count]:
            if self._newest.get(key) is sent:
                del self._newest[key]
        self._blocks -= count
        sent.known += count
        sent.keys = sent.keys[count:]

    def _trim(self, now: float) -> None:
        least = self._blocks - FORGOTTEN
        while self._prompts and (self._blocks > self._capacity or now - self._prompts[0].at >= self._ttl_s):
            if self._blocks < least and self._blocks <= self._capacity:
                return
            gone = self._prompts.popleft()
            self._advance(gone, len(gone.keys))
