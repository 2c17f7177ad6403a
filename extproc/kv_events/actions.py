"""The vocabulary of continuity: the states of a connection, what may happen in them, and the actions that follow.

Values only. `numbering.py` says which input a batch is, `continuity.py` holds the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class State(Enum):
    DOWN = auto()  # not connected
    LIVE = auto()  # following
    REPLAYING = auto()  # waiting for the end of a replay; what is heard is held


class Input(Enum):
    CONNECTED = auto()
    DISCONNECTED = auto()
    TIMEOUT = auto()
    # a batch heard live
    NEXT = auto()  # the expected one
    AHEAD = auto()  # some before it are missing
    SEEN = auto()  # applied before
    FALLEN = auto()  # its number is not new, but its bytes are: the engine restarted
    # a frame of the newest replay
    REPLAYED_NEXT = auto()
    REPLAYED_AHEAD = auto()
    REPLAYED_SEEN = auto()
    REPLAYED_END = auto()


class Purpose(Enum):
    """Why a replay is asked for."""

    START = auto()  # all there is
    GAP = auto()  # what is missing
    LOOK = auto()  # whether anything is


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply this batch; tell `lost` if it cannot be used, and `cleared` if it cleared the cache."""

    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Forget:
    """Hold nothing of this instance."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Ask for all batches from this number on, on a fresh socket: answers to an earlier request are void."""

    start: int


@dataclass(frozen=True, slots=True)
class Closed:
    """A gap has ended: `replayed`, or `forgotten` with all that was held."""

    outcome: str


Action = Apply | Forget | Replay | Closed
