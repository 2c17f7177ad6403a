"""The load of a chaos run: agents' sessions with a shared system prompt, and whether a failed request is our fault.

Half of the sessions stream. A request is **lost** when it failed although an engine could serve it, which is every
failure but one: its reply had begun (status 200) at an engine that was killed within the seconds before. Until then
nothing excuses us: Envoy's retry policy as shipped tries another engine when one dies before its reply has begun. What
was never sent, because the turn before it failed, is no request.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from loadgen.engine.options import MODEL_DIR
from loadgen.replay.replay import PARENT_FAILED, UNFINISHED, Options
from loadgen.replay.run import Gateway, play
from loadgen.replay.words import Words
from loadgen.results.records import Row
from loadgen.workloads.profiles import PROFILES, fixed, lognormal
from loadgen.workloads.synthetic import generate_whole
from loadgen.workloads.trace import Trace

TURNS = 4
SYSTEM, TEXT, REPLY = 400, 120, 16  # tokens: small, for what is tried is the router and not the machine
TIMEOUT_S = 60.0  # of one whole reply: longer than any fault lasts
EXCUSED_S = 5.0  # after an engine's end: its connections break at once, on a busy machine a little later
TAG = "chaos"  # of the load's paths in the access log: CHAT?request=chaos/ID


@dataclass(slots=True)
class Tally:
    """What became of the requests so far."""

    killed: Mapping[str, float]  # engine -> when it was killed
    served: int = 0
    lost: int = 0
    excused: int = 0  # failed, but no engine could have finished them
    unsent: int = 0  # follow-ups of failed requests
    errors: Counter[str] = field(default_factory=Counter)  # of the lost ones

    def note(self, row: Row) -> None:
        """Count one end."""
        if row.ok:
            self.served += 1
        elif row.error == PARENT_FAILED:
            self.unsent += 1
        elif row.error == UNFINISHED:  # the run was interrupted
            return
        elif row.status == 200 and time.monotonic() - self.killed.get(row.instance or "", 0.0) < EXCUSED_S:
            self.excused += 1
        else:
            self.lost += 1
            self.errors[f"{row.status} {row.instance} {row.error}"[:160]] += 1


def workload(seconds: float, rate: float, seed: int) -> Trace:
    """Sessions that begin steadily and bring about `rate` requests a second in all."""
    text = lognormal(TEXT, 0.25, most=1.5 * TEXT, least=0.5 * TEXT)
    profile = replace(
        PROFILES["demo"],
        one_shot=0.0,
        turns=fixed(TURNS),
        shared=((SYSTEM, 1.0),),
        private=SYSTEM,
        first=text,
        single=text,
        append=text,
        output=fixed(REPLY),
        forks=0.0,
    )
    trace = generate_whole(profile, sessions=round(seconds * rate / TURNS) + 1, rate=rate, seed=seed)
    streams = {
        session: number % 2 == 0 for number, session in enumerate(dict.fromkeys(r.session for r in trace.requests))
    }
    return replace(trace, requests=[replace(one, stream=streams[one.session]) for one in trace.requests])


async def agents(url: str, trace: Trace, seconds: float, tally: Tally) -> None:
    """Play all that begins within `seconds`, and wait for its end."""
    gateway = Gateway(url=url, headers={}, timeout_s=TIMEOUT_S)
    words = await asyncio.to_thread(Words, trace, MODEL_DIR)
    await play(gateway, trace, words, Options(tag=TAG, until_s=seconds), tally.note)
