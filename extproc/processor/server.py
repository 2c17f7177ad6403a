"""The gRPC shell: one coroutine per ext_proc stream between Envoy and `stream.py`.

Owns the server's limits, its certificates and how a stream ends. Refuses to know what a stream is for. Nothing that
happens in a stream may cost a request: a bug or a message out of order is logged and counted, and the stream ends in
good order; Envoy then forwards the request by its own policy. Loads are given back in a synchronous `finally`, since an
`await` there is killed when Envoy cancels the stream.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc

from extproc.base import metrics
from extproc.base.headers import TOKEN
from extproc.processor import tls, wire
from extproc.processor.exchange import ProtocolViolation
from extproc.processor.messages import Answer, Decide, Event, OutOfTime, Output, Prefill, Prefilled, Seen
from extproc.processor.routes import Metadata
from extproc.processor.stream import Services, Stream
from extproc.routing.route_settings import PREFIX

_log = logging.getLogger(__name__)

# A 64 MiB body, the largest that the shipped Envoy configuration lets through, and room for its envelope.
MAX_MESSAGE_BYTES = 80 * 1024 * 1024
LOOKAHEAD_BYTES = 1024 * 1024  # most bodies whole
AGAIN_S = 60.0  # until another message out of order is told of
LEAVE_S = 1.0  # for streams to end in good order after a drain; what has not then is cut off
# Of every server of ours, the one for health probes too.
BASIC = (
    ("grpc.so_reuseport", 0),  # a second server on a taken port must fail, not share it silently
    # A gateway may send keepalive pings as often as it likes. By default gRPC closes the connection ("Too many pings")
    # after three in five minutes without data, and with it all of its streams: a reply that streams sends us no data.
    ("grpc.http2.max_ping_strikes", 0),
)
OPTIONS = (
    *BASIC,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # What may come ahead of its being read, of each stream. gRPC would let it grow with the network's speed: twenty
    # clients that send at once filled 570 MB.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)


class Processor:
    """`envoy.service.ext_proc.v3.ExternalProcessor`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.streams = 0  # open at the moment
        self._leaving = asyncio.Event()
        self._said: float | None = None  # when a message out of order was last told of
        self._idle: set[asyncio.Task[Any]] = set()  # of streams that wait for Envoy, and that Envoy could do without

    def handler(self) -> grpc.GenericRpcHandler:
        """What `grpc.aio.Server.add_generic_rpc_handlers` takes."""
        method = grpc.stream_stream_rpc_method_handler(
            self.process, request_deserializer=wire.decode, response_serializer=wire.encode
        )
        return grpc.method_handlers_generic_handler(wire.SERVICE, {wire.METHOD: method})

    async def process(self, _: object, context: Any) -> AsyncIterator[Answer]:
        """One stream: one request of a client, for as long as Envoy is busy with it.

        Messages are read from the context: gRPC's iterator of them keeps each until the next one comes.
        """
        metadata, access = context.invocation_metadata() or (), self._services.access
        if not access.admits(metadata):
            access.refused(context.peer(), time.monotonic())
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"{TOKEN} is missing or wrong")
        stream: Stream | None = None
        self.streams += 1
        metrics.STREAMS.inc()
        try:
            stream = Stream(self._services, _settings(metadata))
            while not stream.exchange.over and (outputs := await self._next(context, stream)) is not None:
                while outputs:
                    output = outputs.popleft()
                    if isinstance(output, Decide | Prefill | Prefilled | Seen):
                        outputs.extend(await stream.act(output))
                    else:
                        yield output
                    del output  # it may hold the request's body, and the next message comes when the engine answers
        except (ProtocolViolation, wire.NoMessage) as violation:
            self._violated(context.peer(), violation)
        except Exception:
            metrics.EXCEPTIONS.labels("stream").inc()
            _log.exception("a bug ended an ext_proc stream; its request goes on without us")
        finally:
            if stream is not None:
                stream.close()
            self.streams -= 1
            metrics.STREAMS.dec()

    def _violated(self, peer: str, violation: Exception) -> None:
        """Count a message that Envoy would not send, and say so now and then: who sends one may send thousands."""
        metrics.EXCEPTIONS.labels("exchange").inc()
        now = time.monotonic()
        if self._said is None or now - self._said >= AGAIN_S:
            self._said = now
            _log.warning("%s sent a message out of order (%s); its request goes on without us", peer, violation)

    def leave(self) -> None:
        """End, in good order, every stream that Envoy can do without: it goes on with the request, and fails nothing.

        A stream that is cut off instead costs a reply that streams, where Envoy cannot fail open.
        """
        self._leaving.set()
        for task in self._idle:
            task.cancel()

    async def _next(self, context: Any, stream: Stream) -> deque[Output] | None:
        """What Envoy's next message asks for; None after the last, or where we leave."""
        task = asyncio.current_task()
        if task is None or not stream.exchange.dispensable:
            return await _received(context, stream)
        if self._leaving.is_set():
            return None
        self._idle.add(task)
        try:
            return await _received(context, stream)
        except asyncio.CancelledError:
            if not self._leaving.is_set():
                raise
            task.uncancel()
            return None
        finally:
            self._idle.discard(task)


async def drain(server: grpc.aio.Server, processor: Processor, timeout_s: float) -> None:
    """Take no new stream, let the open ones end, and leave those that have not ended in time."""
    stopped = asyncio.ensure_future(server.stop(timeout_s + LEAVE_S))
    await asyncio.wait((stopped,), timeout=timeout_s)
    processor.leave()
    await stopped


async def _received(context: Any, stream: Stream) -> deque[Output] | None:
    """What Envoy's next message, or the lack of one in time, asks for; None after the last message.

    The message itself is let go of: nothing here keeps a body for as long as the reply takes.
    """
    event: Event | object
    if (patience_s := stream.patience_s) is None:  # nearly always: a timer that nobody needs costs as much as a message
        event = await context.read()
    else:
        try:
            async with asyncio.timeout(patience_s):
                event = await context.read()
        except TimeoutError:
            event = OutOfTime()
    return deque(stream.exchange.receive(event)) if isinstance(event, Event) else None  # EOF


def options(max_streams: int) -> tuple[tuple[str, int], ...]:
    """What `grpc.aio.server` takes. `max_streams`: of one connection at a time; Envoy then opens another one."""
    return (*OPTIONS, ("grpc.max_concurrent_streams", max_streams))


def credentials(certificates: tls.Source, clients: tls.Authorities | None = None) -> grpc.ServerCredentials:
    """TLS with ALPN h2, by the certificate that is good at the moment of each handshake.

    With `clients`, whoever connects must show a certificate that one of these authorities signed.
    """

    def fetch() -> grpc.ServerCertificateConfiguration:
        pair = certificates()
        roots = clients() if clients else None
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], root_certificates=roots)

    return grpc.dynamic_ssl_server_credentials(fetch(), fetch, require_client_authentication=clients is not None)


def _settings(metadata: Iterable[tuple[str, Any]]) -> Metadata:
    return tuple((key, value) for key, value in metadata if key.startswith(PREFIX) and key != TOKEN)
