"""The ports of the ext_proc server itself, as Envoy's clusters name them: served by one of ours, free, or taken."""

from __future__ import annotations

from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.cli.check_live.findings import Finding, failed, ok, unknown
from extproc.cli.check_live.network import TRY_S, Unreachable, addresses, attempt, connection
from extproc.config import Server

_SERVICE: Final = "readiness"
_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_REMEDY: Final = "write the address that `extproc serve --listen` has, or free the port"
_UNKNOWN_NAME: Final = "run this where Envoy runs and the name is known, or write an address that it can reach"


async def server(one: Server) -> Finding:
    """Who listens there. A port that is free is no mistake: the server may not run yet."""
    what = f"ext_proc {one.host}:{one.port}{' health' if one.health_only else ''}"

    async def look() -> Finding:
        address, *_ = await addresses(one.host)
        try:
            async with connection(address, one.port):
                pass
        except ConnectionRefusedError:
            return unknown(what, "nothing listens there yet")
        if one.tls:
            return unknown(what, "something listens there; it is asked nothing, since Envoy speaks TLS to it")
        return await _health(what, f"[{address}]:{one.port}" if ":" in address else f"{address}:{one.port}")

    def unreached(reason: str) -> Finding:
        return failed(what, reason, _UNKNOWN_NAME if reason.endswith("does not resolve") else _REMEDY)

    return await attempt(look(), unreached)


async def _health(what: str, target: str) -> Finding:
    async with grpc.aio.insecure_channel(target) as channel:
        try:
            question = health_pb2.HealthCheckRequest(service=_SERVICE)
            answer = await health_pb2_grpc.HealthStub(channel).Check(question, timeout=TRY_S / 2)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise Unreachable("another gRPC server listens there") from error
            raise Unreachable("what listens there is no ext_proc server: it does not answer gRPC health") from error
    return ok(what, "one of ours serves" if answer.status == _SERVING else "one of ours listens, and is not ready")
