"""Bodies of every size are read alike, here or by another process, and none holds the loop."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from extproc.app.large_bodies import LargeBodies
from extproc.app.pools import pool_of
from extproc.base.model import Instance, Reason
from extproc.config import PoolSettings
from extproc.config.settings import Discovery
from extproc.routing.query import Ask
from extproc.routing.reading import LARGE_BYTES, Reading, at_once
from loadgen.engine.options import MODEL_DIR

CHAT = "/v1/chat/completions"
SETTINGS = (
    PoolSettings("plain", Discovery.STATIC, (), models=frozenset({"plain"})),
    PoolSettings("tiny", Discovery.STATIC, (), model_dir=MODEL_DIR),
)
POOLS = [pool_of(settings) for settings in SETTINGS]
POOLS[0].secret, POOLS[1].secret = b"a secret", b"another"
POOLS[1].instances = [Instance("10.0.0.1:8000"), Instance("10.0.0.2:8000")]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bodies() -> AsyncIterator[LargeBodies]:
    """One process for all tests; a patient one, since this machine may be busy."""
    reader = LargeBodies(SETTINGS, budget_s=60.0)
    yield reader
    await reader.close()


def announced(_: str) -> Mapping[str, frozenset[str]]:
    return {"adapter": frozenset({"10.0.0.2:8000"})}


def session(size: int, **fields: Any) -> bytes:
    said = [{"role": role, "content": "naïve words, 言葉 " * 200} for role in ("user", "assistant")]
    messages = said * (size // 8000) + said[:1]
    return json.dumps({"messages": messages, **fields}, ensure_ascii=False).encode()


def known(read: Reading) -> Sequence[object]:
    query = read.query
    chains = [list(query.chain), list(query.base_chain), query.loaded]
    return [
        read.pool.name,
        query.turn,
        query.history,
        query.prompt,
        *chains,
        query.spoken,
        query.degraded,
        query.stores,
    ]


CASES = {
    "a session of 2 MB": Ask(CHAT, session(2 << 20)),
    "of another pool": Ask(CHAT, session(2 << 20, model="plain")),
    "of an adapter": Ask(CHAT, session(2 << 20, model="adapter")),
    "whose turn the client tells": Ask(CHAT, session(2 << 20), turn=7),
    "many messages": Ask(CHAT, json.dumps({"messages": [{"role": "user", "content": "a"}] * 2000}).encode()),
    "a response": Ask("/v1/responses", json.dumps({"input": "x" * LARGE_BYTES}).encode()),
    "no JSON": Ask(CHAT, b"x" * (LARGE_BYTES + 1)),
    "a view of a message": Ask(CHAT, memoryview(session(2 << 20))),
    "an API that we do not render": Ask("/v1/embeddings", session(2 << 20)),
}


@pytest.mark.parametrize("ask", CASES.values(), ids=CASES.keys())
async def test_another_process_reads_as_this_one(bodies: LargeBodies, ask: Ask) -> None:
    """The pool, the turn, the lengths and every key are the same as if the body had been read here."""
    there = await bodies.read([POOLS[0], POOLS[1]], announced, ask)
    assert known(there) == known(at_once([POOLS[0], POOLS[1]], announced, ask))


async def test_a_small_body_is_read_here() -> None:
    """No other process has to be there for it."""
    reader = LargeBodies(SETTINGS, budget_s=0.0)
    read = await reader.read([POOLS[1]], announced, Ask(CHAT, session(8000)))
    assert read.query.degraded is None
    await reader.close()


async def test_a_costly_body_goes_by_load_with_its_reason(bodies: LargeBodies) -> None:
    """One that takes too much of the processor or of memory, and one that nobody had time for; the client's own word
    on its turn still counts. The process that gave up on it reads the next one."""
    costly = b'{"x":[' + b"[],[{}]," * (15 << 17) + b'0],"messages":[{"role":"user","content":"a"}]}'
    for ask in (Ask(CHAT, costly, turn=3), Ask(CHAT, json.dumps({"prompt": ["a"] * 5_000_000}).encode(), turn=3)):
        read = await bodies.read([POOLS[1]], announced, ask)
        assert (read.query.degraded, read.query.turn) == (Reason.BODY_TOO_COSTLY, 3)
    assert (await bodies.read([POOLS[1]], announced, CASES["a session of 2 MB"])).query.degraded is None

    for ends in (b'{"model":"plain","x":[' + b"[],[{}]," * (15 << 17) + b"0]}", costly[:-1] + b',"model": "plain"}'):
        read = await bodies.read(POOLS[::-1], announced, Ask(CHAT, ends))
        assert (read.query.degraded, read.pool.name) == (Reason.BODY_TOO_COSTLY, "plain"), "who serves its model"

    hasty = LargeBodies(SETTINGS, budget_s=0.0)
    read = await hasty.read([POOLS[1]], announced, CASES["whose turn the client tells"])
    assert (read.query.degraded, read.query.turn) == (Reason.BODY_TOO_COSTLY, 7)
    await hasty.close()


async def test_a_changed_pool_is_read_as_it_is_now() -> None:
    """After a change of the configuration; a pool that the process does not know yet goes by load."""
    reader = LargeBodies(SETTINGS[:1], budget_s=60.0)
    ask = CASES["many messages"]
    assert (await reader.read([POOLS[1]], announced, ask)).query.degraded is Reason.BODY_TOO_COSTLY
    reader.change(SETTINGS[:1])
    reader.change(SETTINGS)
    async with asyncio.timeout(60):
        while (read := await reader.read([POOLS[1]], announced, ask)).query.degraded is not None:
            await asyncio.sleep(0.05)
    assert known(read) == known(at_once([POOLS[1]], announced, ask))
    await reader.close()


async def test_the_process_ends_with_its_parent() -> None:
    """However that ends: a router that is killed leaves nothing behind."""
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(Path.cwd())!r})
from tests.extproc.app.test_large_bodies import *
async def main():
    reader = LargeBodies(SETTINGS, budget_s=60.0)
    await reader.read([POOLS[1]], announced, CASES["many messages"])
    print(open(f"/proc/{{os.getpid()}}/task/{{os.getpid()}}/children").read(), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    command = [sys.executable, "-c", program]
    parent = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    [child] = [int(pid) for pid in (await parent.stdout.readline()).split()]
    parent.kill()
    await parent.wait()
    async with asyncio.timeout(30):
        while _runs(child):
            await asyncio.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, ProcessLookupError):
        return False
