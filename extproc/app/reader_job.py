"""What a process that reads large bodies is told and asked, and what it answers: the words of both ends of its socket.

It is a language of values, and knows neither end. A frame is two lengths, a head (msgpack) and a body, which is a
request's own and never copied into the head.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence, Set
from typing import Final

import msgspec

from extproc.base.model import Instance
from extproc.routing.query import Query

LENGTHS: Final = struct.Struct("<II")  # before each frame: bytes of its head, bytes of its body


class PoolFacts(msgspec.Struct, frozen=True):
    """What configuration says of a pool, as far as reading depends on it."""

    name: str
    model_dir: str | None
    models: frozenset[str]
    block_bytes: int


class Job(msgspec.Struct, frozen=True):
    """The first frame: what is the same for all questions."""

    pools: Sequence[PoolFacts]
    log_level: str = "info"


class Candidate(msgspec.Struct, frozen=True):
    """A pool that may serve the request, as it is at the moment."""

    name: str
    secret: bytes | None  # of its keys
    announced: dict[str, Set[str]]  # by LoRA adapter, the names of the instances that announced it
    instances: Sequence[Instance] = ()  # where adapters or halves make them matter


class Question(msgspec.Struct, frozen=True):
    """A request, of which the body comes apart."""

    candidates: Sequence[Candidate]
    path: str
    turn: int | None
    within_s: float  # for how long the answer is worth anything


class Answer(msgspec.Struct, frozen=True):
    """The pool that serves the request's model, and what the request asks of its caches."""

    pool: str
    query: Query
