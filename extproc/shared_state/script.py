"""Lua scripts that Redis runs atomically: read from this package's files, sent by their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

from redis.exceptions import NoScriptError

from extproc.shared_state.connections import Client

Argument = bytes | str | int


class Script:
    """A Lua script that Redis runs atomically. Redis forgets scripts when it restarts; then its source is sent."""

    def __init__(self, source: str, keys: int) -> None:
        self._source = source.encode()
        self._digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        self._keys = keys

    @classmethod
    def read(cls, package: str, *names: str, keys: int) -> Script:
        """The script made of these Lua files of a package, one after the other; so many of its arguments are keys."""
        files = resources.files(package)
        return cls("\n".join(files.joinpath(f"{name}.lua").read_text() for name in names), keys)

    async def run(self, client: Client, keys_and_arguments: Sequence[Argument]) -> Any:
        """Its answer to one call."""
        try:
            return await client.execute_command("EVALSHA", self._digest, self._keys, *keys_and_arguments)
        except NoScriptError:
            return await client.execute_command("EVAL", self._source, self._keys, *keys_and_arguments)

    async def run_all(self, client: Client, calls: Sequence[Sequence[Argument]]) -> list[Any]:
        """Its answers to many calls in one round trip, in order; all of them have keys in one hash slot.

        Raises the first error; the calls after the failed one may have run.
        """
        for first in ("EVALSHA", "EVAL"):
            pipeline = client.pipeline(transaction=False)
            pipeline.execute_command(first, self._digest if first == "EVALSHA" else self._source, self._keys, *calls[0])
            for call in calls[1:]:
                pipeline.execute_command("EVALSHA", self._digest, self._keys, *call)
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
            errors = [answer for answer in answers if isinstance(answer, Exception)]
            if not any(isinstance(error, NoScriptError) for error in errors):
                break
        if errors:
            raise errors[0]
        return answers
