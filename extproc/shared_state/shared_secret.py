"""The secret of the keys of prompt blocks, the same for all routers and followers of an index: one value in Redis.

Whoever finds none there leaves his own. So a secret that was lost (a flush, a restart, an eviction) is put back by the
first who looks, and nothing changes; only where somebody who never knew it was faster do all others hear of another
one. What hangs on it, those who use it know. It expires some hours after the last router.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from extproc.base.blocks import SECRET_BYTES
from extproc.base.errors import IndexUnavailable
from extproc.shared_state.connections import Client, close, connect
from extproc.shared_state.link import Link
from extproc.shared_state.redis_url import parse

_log = logging.getLogger(__name__)

SCHEMA: Final = 1
LOOK_S: Final = 1.0  # between two looks: as long may routers disagree, and find nothing in the index
RETRY_S: Final = 0.25  # while none is known, and all decisions go by load
BUDGET_S: Final = 1.0
LIFE_S: Final = 4 * 3600  # longer than anything in the index lives without a writer
KEEP_EVERY_S: Final = 60.0  # a write, so that processes that only read notice too that their Redis became a replica


class SharedSecret:
    """`secret` is None until Redis was reached once; after that it stays while Redis is away."""

    def __init__(self, client: Client, *, namespace: str) -> None:
        self.secret: bytes | None = None
        self._client = client
        self._link = Link(client, 1, namespace)
        self._name = f"{namespace}:{SCHEMA}:secret"
        self._own = secrets.token_bytes(SECRET_BYTES)
        self._keep_at = 0.0

    @classmethod
    def from_url(cls, url: str) -> SharedSecret:
        """See `redis_url.parse`. Raises ConfigError."""
        address = parse(url)
        return cls(connect(address, 1), namespace=address.namespace)

    async def look(self) -> bool:
        """Read it, or leave ours where there is none. Whether it is another than before. Raises IndexUnavailable."""
        before, there = self.secret, await self._link.run("secret", BUDGET_S, self._read)
        if not there:
            raise IndexUnavailable("the secret was lost again at once")
        if before is not None and there != before:
            _log.warning("the secret of the index was replaced in Redis: all that is cached is written anew")
        self.secret = there
        return there != before

    async def peek(self) -> bytes | None:
        """Read it, and leave nothing there. None where nobody has one, or Redis is away."""
        with suppress(IndexUnavailable):
            return await self._link.run("secret", BUDGET_S, self._get)
        return None

    async def run(self, changed: Callable[[bytes], None]) -> None:
        """Look regularly, and tell of another secret, until cancelled; then disconnect."""
        try:
            while True:
                with suppress(IndexUnavailable):
                    if await self.look() and self.secret is not None:
                        changed(self.secret)
                    await self._keep(asyncio.get_running_loop().time())
                await asyncio.sleep(RETRY_S if self.secret is None else LOOK_S)
        finally:
            await self.close()

    async def close(self) -> None:
        """Disconnect."""
        await self._link.close()
        await close(self._client)

    async def _read(self, client: Client) -> bytes | None:
        there = await self._get(client)
        if there:
            return there
        await client.execute_command("SET", self._name, self.secret or self._own, "NX", "EX", LIFE_S)
        return await self._get(client)

    async def _get(self, client: Client) -> bytes | None:
        there: bytes | None = await client.execute_command("GET", self._name)
        return there

    async def _keep(self, now: float) -> None:
        """It is still needed. Apart from reading, which a replica allows."""
        if now >= self._keep_at:
            await self._link.run("keep_secret", BUDGET_S, self._prolong)
            self._keep_at = now + KEEP_EVERY_S

    async def _prolong(self, client: Client) -> None:
        await client.execute_command("EXPIRE", self._name, LIFE_S)
