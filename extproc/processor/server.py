"""The gRPC shell: one coroutine per ext_proc stream between Envoy and `stream.py`.

Owns the server's limits, its certificates and how a stream ends. Refuses to know what a stream is for. Nothing that
happens in a stream may cost a request: a bug or a message out of order is logged and counted, and the stream ends in
good order; Envoy then forwards the request by its own policy. Loads are given back in a synchronous `finally`, since an
`await` there is killed when Envoy cancels the stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import grpc

from extproc.base import metrics
from extproc.processor import tls, wire
from extproc.processor.exchange import ProtocolViolation
from extproc.processor.messages import Answer, Decide, Event, OutOfTime, Prefill, Prefilled, Seen
from extproc.processor.routes import Metadata
from extproc.processor.stream import Services, Stream

_log = logging.getLogger(__name__)

# A 64 MiB body, the largest that the shipped Envoy configuration lets through, and room for its envelope.
MAX_MESSAGE_BYTES = 80 * 1024 * 1024
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a second server on a taken port must fail, not share it silently
)


class Processor:
    """`envoy.service.ext_proc.v3.ExternalProcessor`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.streams = 0  # open at the moment

    def handler(self) -> grpc.GenericRpcHandler:
        """What `grpc.aio.Server.add_generic_rpc_handlers` takes."""
        method = grpc.stream_stream_rpc_method_handler(
            self.process, request_deserializer=wire.decode, response_serializer=wire.encode
        )
        return grpc.method_handlers_generic_handler(wire.SERVICE, {wire.METHOD: method})

    async def process(self, events: AsyncIterator[Event], context: Any) -> AsyncIterator[Answer]:
        """One stream: one request of a client, for as long as Envoy is busy with it."""
        stream = Stream(self._services, _metadata(context))
        self.streams += 1
        metrics.STREAMS.inc()
        try:
            async for event in _in_time(events, stream):
                outputs = deque(stream.exchange.receive(event))
                while outputs:
                    output = outputs.popleft()
                    if isinstance(output, Decide | Prefill | Prefilled | Seen):
                        outputs.extend(await stream.act(output))
                    else:
                        yield output
        except ProtocolViolation as violation:
            metrics.EXCEPTIONS.labels("exchange").inc()
            _log.warning("Envoy sent a message out of order (%s); its request goes on without us", violation)
        except Exception:
            metrics.EXCEPTIONS.labels("stream").inc()
            _log.exception("a bug ended an ext_proc stream; its request goes on without us")
        finally:
            stream.close()
            self.streams -= 1
            metrics.STREAMS.dec()


async def _in_time(events: AsyncIterator[Event], stream: Stream) -> AsyncIterator[Event]:
    """The events; where a body that we collect does not end in time, that is the last of them."""
    due = asyncio.get_running_loop().time() + stream.body_s
    while True:
        try:
            if stream.exchange.collecting:
                async with asyncio.timeout_at(due):
                    event = await anext(events)
            else:
                event = await anext(events)
        except StopAsyncIteration:
            return
        except TimeoutError:
            yield OutOfTime()
            return
        yield event


def credentials(certificates: tls.Source) -> grpc.ServerCredentials:
    """TLS with ALPN h2, by the certificate that is good at the moment of each handshake."""

    def fetch() -> grpc.ServerCertificateConfiguration:
        pair = certificates()
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)])

    return grpc.dynamic_ssl_server_credentials(fetch(), fetch)


def _metadata(context: Any) -> Metadata:
    return tuple((key, value) for key, value in context.invocation_metadata() or () if key.startswith("x-smetric-"))
