"""gRPC health under every name that gateways probe. Owns the names; refuses to know who decides that we are ready."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from extproc.processor import wire

# Names that gateways probe: the whole server, Kubernetes' two probes, the Endpoint Picker Protocol's, and the service.
READINESS = ("", "readiness", "inference-extension", wire.SERVICE)
LIVENESS = "liveness"


class GrpcHealth:
    """`Check` and `Watch`; one of them may be added to several servers."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve health on this server too."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set(self, *, ready: bool) -> None:
        """Ready or not, the process is alive: a draining one must not be killed for failing its liveness probe."""
        serving = health_pb2.HealthCheckResponse.SERVING
        await self._servicer.set(LIVENESS, serving)
        for name in READINESS:
            await self._servicer.set(name, serving if ready else health_pb2.HealthCheckResponse.NOT_SERVING)
