"""`python -m extproc.app.reader`: reads large bodies for a process that serves (`readers.py`), one after the other.

It reads as the router does, with the same code, and knows no index and no load. It imports nothing that serves, so that
a new one is soon there. Its socket is its standard input, and it ends with it: its parent stops it so, or is gone.

Nobody waits for a body that takes too long, so an alarm ends the reading, between two instructions of Python. Memory is
bounded too: what one body may take is given back before the next one comes.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from io import BufferedRWPair
from pathlib import Path
from typing import Final

import msgspec

from extproc.app import log
from extproc.app.reader_job import LENGTHS, Answer, Candidate, Job, PoolFacts, Question
from extproc.base.model import Reason
from extproc.prompts.renderer import PlainRenderer, Renderer
from extproc.requests.apis import models_named
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask, Query, pool_named
from extproc.routing.reading import Reading, at_once

READ_S: Final = 0.25  # of the processor, for one body: 16 MB of an agent take half of it, and others wait
ALLOWED_BYTES: Final = 192 << 20  # beyond what it takes before the first body: ten copies of 16 MiB
GROWN_BYTES: Final = 96 << 20  # one that keeps more than this of past bodies is replaced
CHUNK: Final = 1 << 20

Stream = BufferedRWPair


class _OutOfTime(BaseException):
    """The alarm. No `except Exception` on the way may take it for a fault of the body."""


def main() -> None:
    """Answer questions until the socket ends."""
    signal.signal(signal.SIGALRM, _ring)
    signal.signal(signal.SIGPROF, _ring)
    with suppress(EOFError, ConnectionError), socket.socket(fileno=0) as parent, parent.makefile("rwb") as stream:
        head, _ = _receive(stream)
        job = msgspec.msgpack.decode(head, type=Job)
        log.configure(job.log_level)
        pools = {facts.name: _pool(facts) for facts in job.pools}
        gc.disable()  # every body is millions of objects, and no cycle: what is left is collected between two of them
        gc.freeze()
        _bound_memory()
        begun = _resident()
        _send(stream, b"")
        while _resident() < begun + GROWN_BYTES:
            _send(stream, msgspec.msgpack.encode(_answer(pools, *_receive(stream))))
            _tidy()


def _answer(pools: Mapping[str, Pool], head: bytes, body: bytes) -> Answer:
    question = msgspec.msgpack.decode(head, type=Question)
    if question.within_s <= 0:
        return Answer(question.candidates[0].name, Query(question.turn or 0, degraded=Reason.BODY_TOO_COSTLY))
    asked = [_told(pools[candidate.name], candidate) for candidate in question.candidates]
    announced = {candidate.name: candidate.announced for candidate in question.candidates}
    try:
        _alarm(question.within_s, READ_S)
        try:
            read = at_once(asked, announced.__getitem__, Ask(question.path, body, turn=question.turn))
        finally:
            _alarm(0, 0)
    except (_OutOfTime, MemoryError):
        likely = pool_named(asked, announced.__getitem__, models_named(body))
        read = Reading(likely, Query(question.turn or 0, degraded=Reason.BODY_TOO_COSTLY))
    return Answer(read.pool.name, read.query)


def _told(pool: Pool, candidate: Candidate) -> Pool:
    pool.secret, pool.instances = candidate.secret, candidate.instances
    return pool


def _pool(facts: PoolFacts) -> Pool:
    renderer = PlainRenderer() if facts.model_dir is None else Renderer.load(Path(facts.model_dir))
    return Pool(facts.name, renderer, facts.models, facts.block_bytes)


def _alarm(wall_s: float, cpu_s: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, wall_s)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def _ring(*_: object) -> None:
    raise _OutOfTime


def _receive(stream: Stream) -> tuple[bytes, bytes]:
    head, body = LENGTHS.unpack(_exactly(stream, LENGTHS.size))
    return _exactly(stream, head), _exactly(stream, body)


def _exactly(stream: Stream, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the parent is gone")
    return data


def _send(stream: Stream, answer: bytes) -> None:
    stream.write(LENGTHS.pack(len(answer), 0) + answer)
    stream.flush()


def _bound_memory() -> None:
    """A body that takes more raises MemoryError. Where the system does not know the limit, only time bounds it."""
    taken = _from_proc("status", "VmData:") * 1024
    if taken:
        resource.setrlimit(resource.RLIMIT_DATA, (taken + ALLOWED_BYTES, resource.RLIM_INFINITY))


def _resident() -> int:
    return _from_proc("status", "VmRSS:") * 1024


def _from_proc(name: str, key: str) -> int:
    """A number of this process; 0 where the system does not tell."""
    try:
        lines = Path(f"/proc/self/{name}").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(key)), 0)


def _tidy() -> None:
    """Give back what the last body took."""
    gc.collect()
    with suppress(AttributeError):  # of glibc alone
        ctypes.CDLL(None).malloc_trim(0)


if __name__ == "__main__":
    main()
