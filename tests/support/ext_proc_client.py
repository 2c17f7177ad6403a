"""A processor over real gRPC, and a client that speaks to it as Envoy does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from google.protobuf import json_format

from extproc.app.options import MAX_STREAMS
from extproc.base.model import Instance
from extproc.index.memory import MemoryIndex
from extproc.processor.prefiller import Prefiller
from extproc.processor.server import OPTIONS, Processor, options
from extproc.processor.shared_token import Access
from extproc.processor.stream import Services
from extproc.prompts.renderer import PlainRenderer
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from extproc.routing.route_settings import RouteSettings
from extproc.routing.router import Router

BODY = json.dumps({"messages": [{"role": "user", "content": "hello " * 200}]}).encode()


class Served:
    """A running server and a channel to it."""

    def __init__(
        self,
        instances: int = 2,
        addresses: Sequence[str] | None = None,
        *,
        tokens: Sequence[str] = (),
        max_streams: int = MAX_STREAMS,
        secured: grpc.ServerCredentials | None = None,
        shown: grpc.ChannelCredentials | None = None,
    ) -> None:
        """`addresses` are those of the instances, where these are real. With `secured` it serves by TLS, and
        the channel shows `shown` to a server for localhost."""
        self.max_streams = max_streams
        self._secured, self._shown = secured, shown
        self.loads = Loads()
        named = [f"10.0.0.{number}:8000" for number in range(instances)] if addresses is None else addresses
        self.pool = Pool("pool", PlainRenderer(), instances=[Instance(address) for address in named])
        self.routed: list[str] = []
        self.services = Services(
            Router(MemoryIndex(), self.loads),
            {"pool": self.pool},
            _route,
            lambda _, routed: self.routed.append(routed.choice.instance.address),
            Prefiller(),
            access=Access(tokens),
        )
        self.processor = Processor(self.services)
        self.channel: grpc.aio.Channel
        self.server: grpc.aio.Server
        self.port = 0

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Served]:
        server = self.server = grpc.aio.server(options=options(self.max_streams))
        server.add_generic_rpc_handlers((self.processor.handler(),))
        if self._secured is None:
            self.port = server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = server.add_secure_port("127.0.0.1:0", self._secured)
        await server.start()
        async with self.connect(self._shown) as self.channel:
            yield self
        await server.stop(0)

    def connect(self, shown: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        """A channel of somebody who shows these, or speaks plaintext."""
        target = f"127.0.0.1:{self.port}"
        if shown is None:
            return grpc.aio.insecure_channel(target, options=OPTIONS)
        as_localhost = (*OPTIONS, ("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1))
        return grpc.aio.secure_channel(target, shown, options=as_localhost)

    def stream(self, *metadata: tuple[str, str]) -> Any:
        method = self.channel.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )
        return method(metadata=metadata)


def message(**fields: Any) -> ProcessingRequest:
    parsed: ProcessingRequest = json_format.ParseDict(fields, ProcessingRequest())
    return parsed


def headers(path: str = "/v1/chat/completions", *, end: bool = False) -> ProcessingRequest:
    pairs = [{"key": ":path", "value": path}, {"key": ":method", "value": "POST"}]
    return message(
        request_headers={"headers": {"headers": pairs}, "end_of_stream": end},
        protocol_config={"request_body_mode": "BUFFERED"},
    )


def body(data: bytes) -> ProcessingRequest:
    request = ProcessingRequest()
    request.request_body.body = data
    request.request_body.end_of_stream = True
    return request


def answered(served_by: str | None = None, status: int = 200) -> ProcessingRequest:
    fields: dict[str, Any] = {"response_headers": {"headers": {"headers": [{"key": ":status", "value": f"{status}"}]}}}
    if served_by:
        fields["attributes"] = {"envoy.filters.http.ext_proc": {"upstream.address": served_by}}
    return message(**fields)


async def ask(stream: Any, *requests: ProcessingRequest) -> list[dict[str, Any]]:
    """Send messages one by one, each after the answer to the one before."""
    answers = []
    for request in requests:
        await stream.write(request)
        answer = await stream.read()
        answers.append(json_format.MessageToDict(answer, preserving_proto_field_name=True))
    return answers


async def until_idle(served: Served) -> None:
    """Wait until no stream is open and no load is held."""
    async with asyncio.timeout(30):
        while served.processor.streams or served.loads.snapshot("pool"):
            await asyncio.sleep(0.01)


def _route(metadata: Sequence[tuple[str, str]]) -> RouteSettings:
    """The pool that the stream names; what Envoy calls by the name in envoy/drop-in.yaml is ours too."""
    name = dict(metadata).get("x-smetric-cluster", "pool")
    return RouteSettings("pool" if name == "vllm" else name)
