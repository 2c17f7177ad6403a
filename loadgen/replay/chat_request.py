"""One chat request to an OpenAI endpoint, timed, its answer read as it comes. Knows no sessions and no workload.

Whatever a server does is an error in words, never an exception; a request that is cancelled keeps what it had.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping

import aiohttp

from loadgen.replay.answers import Reading, plain

CHAT = "/v1/chat/completions"
ENGINE_HEADER = "x-engine"  # set by simulated engines: ip:port
# vLLM closes a connection after 5 s without a request; closed earlier here, no request meets the closing.
IDLE_S = 4.0
# Bytes, far above what a server means to send: one that never stops must not take the memory of the whole run.
LONGEST_DOCUMENT = 2**22  # an event, or an answer that does not stream
LONGEST_STREAM = 2**28


def connect(base_url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float) -> aiohttp.ClientSession:
    """Connections to an endpoint. `timeout_s` is what one whole answer may take."""
    return aiohttp.ClientSession(
        base_url,
        # No limit of connections: what is measured is the server, not this client's pool.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        headers={"content-type": "application/json", **(headers or {})},
    )


class ChatRequest:
    """One request and what came of it. Times of `time.monotonic`, in seconds; absent values are None."""

    def __init__(self) -> None:
        self.status: int | None = None  # None: no answer at all
        self.instance: str | None = None  # as the answer's header names it
        self.sent_s = self.end_s = time.monotonic()  # the end: when the last of the answer came, or an error
        self.first_s: float | None = None  # its first token, where it streams
        self.error: str | None = None
        self.reading = Reading()

    async def send(
        self,
        http: aiohttp.ClientSession,
        body: bytes,
        *,
        path: str = CHAT,
        stream: bool = True,
        instance_header: str = ENGINE_HEADER,
    ) -> None:
        """Send `body`, which asks for a stream if `stream`, and read the whole answer. Once, and at once."""
        reading = self.reading
        try:
            async with http.post(path, data=io.BytesIO(body)) as response:
                self.status = response.status
                if (name := response.headers.get(instance_header)) is not None:
                    self.instance = plain(name)
                if response.status == 200 and stream:
                    await self._read(response.content)
                else:
                    whole = await read_whole(response.content)
                    self.end_s = time.monotonic()
                    if response.status == 200:
                        reading.whole(whole)
                    else:
                        text = whole.decode("utf-8", "replace")
                        reading.error = text or response.reason or f"status {response.status}"
            if reading.error or not reading.done:
                self.error = plain(reading.error or "the answer ended too early")
            else:
                self.error = None
        except Exception as failure:  # any: what a server can bring about in libraries cannot be listed
            self.error = plain(": ".join(filter(None, (type(failure).__name__, str(failure)))))
            self.end_s = time.monotonic()

    async def _read(self, content: aiohttp.StreamReader) -> None:
        rest = b""
        size = 0
        async for some in content.iter_any():  # several tokens at once when they come faster than they are read
            self.end_s = time.monotonic()
            size += len(some)
            if size > LONGEST_STREAM or len(rest) > LONGEST_DOCUMENT:
                raise ValueError("the answer does not end")
            *lines, rest = (rest + some).split(b"\n")
            for line in filter(None, lines):
                self.reading.line(line)
            if self.first_s is None and self.reading.begun:
                self.first_s = self.end_s
        self.reading.line(rest)


async def read_whole(content: aiohttp.StreamReader) -> bytes:
    """All that comes. Raises ValueError for more than LONGEST_DOCUMENT, and what aiohttp raises."""
    pieces: list[bytes] = []
    size = 0
    async for some in content.iter_any():
        pieces.append(some)
        size += len(some)
        if size > LONGEST_DOCUMENT:
            raise ValueError("the answer does not end")
    return b"".join(pieces)
