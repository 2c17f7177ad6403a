"""Lua scripts on a real Redis."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from extproc.shared_state.connections import connect
from extproc.shared_state.redis_url import parse
from extproc.shared_state.script import Script
from tests.support.redis_server import RedisServer

DOUBLE = Script("return ARGV[1] * 2", keys=0)


async def test_the_source_is_sent_where_redis_lacks_it(own_redis: RedisServer) -> None:
    """A Redis that never had a script, or forgot it, runs it nevertheless, alone and in a batch."""
    client = connect(parse(own_redis.url), 1)
    assert await DOUBLE.run(client, [21]) == 42
    await client.execute_command("SCRIPT", "FLUSH")
    assert await DOUBLE.run_all(client, [[1], [2], [3]]) == [2, 4, 6]
    assert await DOUBLE.run(client, [4]) == 8
    await client.aclose()


async def test_the_first_error_of_a_batch_is_raised(own_redis: RedisServer) -> None:
    """A call that fails is not taken for an answer."""
    client = connect(parse(own_redis.url), 1)
    with pytest.raises(ResponseError):
        await DOUBLE.run_all(client, [[1], ["x"], [3]])
    await client.aclose()
