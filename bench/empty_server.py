"""The least ext_proc server: answers each message without looking. Benchmarks run it beside ours: it is the floor."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from extproc.processor.grpc_health import GrpcHealth

ANSWERS = {kind: ProcessingResponse() for kind in ("request_headers", "request_body", "response_headers")}
for name, message in ANSWERS.items():
    getattr(message, name).SetInParent()


async def process(messages: AsyncIterator[Any], _: Any) -> AsyncIterator[Any]:
    async for message in messages:
        yield ANSWERS[message.WhichOneof("request")]


async def main(address: str) -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    method = grpc.stream_stream_rpc_method_handler(
        process, ProcessingRequest.FromString, ProcessingResponse.SerializeToString
    )
    service = "envoy.service.ext_proc.v3.ExternalProcessor"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Process": method}),))
    health = GrpcHealth()  # Envoy sends nothing to an ext_proc server whose health it cannot see
    health.add_to(server)
    server.add_insecure_port(address)
    await server.start()
    await health.set(ready=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
