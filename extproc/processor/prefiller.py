"""The HTTP edge of disaggregation in `filter` mode: one prefill request to one instance.

Cancelling `send` closes the connection, which tells vLLM that the prefill is no longer wanted. Knows nothing
of retries, loads and Envoy (`server.py`).
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from enum import StrEnum

import aiohttp

from extproc.base.headers import RANK
from extproc.base.model import Instance
from extproc.routing.disaggregation.bodies import engines_path, kv_transfer_params, prefill_body

# What the prefill instance must see of the client's request: who asks, and what traces it.
FORWARDED = (
    "authorization",
    "x-api-key",
    "anthropic-version",
    "x-request-id",
    "traceparent",
    "tracestate",
    "baggage",
)
# One token and the list of the prompt's blocks: a million tokens in blocks of 16 are about 500 KB. A client may ask for
# more (the token ids, their probabilities); what is larger is not worth the memory.
MAX_ANSWER_BYTES = 16 * 1024 * 1024
PASSING = (408, 429)  # statuses 4xx that are not about the request: too slow at the moment, too busy
CONNECT_S = 1.0  # Envoy's connect_timeout in the configuration that we ship
KEEP_ALIVE_S = 4.0  # vLLM closes a connection after 5 s without a request


class Outcome(StrEnum):
    """How a prefill request ended: the label of its metric."""

    OK = "ok"
    REFUSED = "refused"  # the instance answered, and not with 200
    REJECTED = "rejected"  # ... and it is the request that is at fault: no other instance would take it
    NO_PARAMS = "no_params"  # its answer has no kv_transfer_params: it has no KV connector
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"  # no connection, or one that broke


class PrefillFailed(Exception):
    """One instance did not prefill. The message is for the log and shows nothing of the prompt."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome

    @property
    def answered(self) -> bool:
        """Whether the instance is alive."""
        return self.outcome not in (Outcome.TIMEOUT, Outcome.UNREACHABLE)


class Prefiller:
    """Sends prefill requests; connections are kept and opened on demand."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def send(self, to: Instance, headers: Mapping[str, str], body: bytes, timeout_s: float) -> bytes:
        """Have `to` compute the prompt of a request (Envoy's `headers`, the client's body).

        Returns the `kv_transfer_params` of the answer, as JSON. Raises PrefillFailed, and nothing else, within the
        time-out.
        """
        path = headers[":path"]
        sent = {name: headers[name] for name in FORWARDED if name in headers}
        sent["content-type"] = "application/json"
        if to.rank is not None:
            sent[RANK] = str(to.rank)
        data = io.BytesIO(prefill_body(path, body))
        url = f"http://{to.address}{engines_path(path)}"
        try:
            async with asyncio.timeout(timeout_s):
                # A redirect would lead to a host that is not in the pool.
                async with self._open().post(url, data=data, headers=sent, allow_redirects=False) as answer:
                    return await _params(answer)
        except TimeoutError:
            raise PrefillFailed(Outcome.TIMEOUT, f"no answer within {timeout_s:g} s") from None
        except ValueError as error:  # also of aiohttp's errors those that are about what we were to send
            raise PrefillFailed(Outcome.REJECTED, f"cannot be sent: {type(error).__name__}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise PrefillFailed(Outcome.UNREACHABLE, f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Close the connections that are kept."""
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),  # what an engine sets for one client is not for the next
            )
        return self._session


async def _params(answer: aiohttp.ClientResponse) -> bytes:
    if answer.status != 200:
        at_fault = 400 <= answer.status < 500 and answer.status not in PASSING
        raise PrefillFailed(Outcome.REJECTED if at_fault else Outcome.REFUSED, f"status {answer.status}")
    content = bytearray()
    async for piece in answer.content.iter_any():
        content += piece
        if len(content) > MAX_ANSWER_BYTES:
            raise PrefillFailed(Outcome.NO_PARAMS, f"an answer of more than {MAX_ANSWER_BYTES} bytes")
    params = kv_transfer_params(bytes(content))
    if params is None:
        raise PrefillFailed(Outcome.NO_PARAMS, "an answer without kv_transfer_params: is a KV connector configured?")
    return params
