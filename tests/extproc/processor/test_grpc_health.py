"""Health as gateways and Kubernetes ask for it."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.processor.grpc_health import READINESS, GrpcHealth


async def test_health_answers_under_every_name() -> None:
    """Check and Watch, ready and not, alive throughout."""
    server, health = grpc.aio.server(), GrpcHealth()
    health.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    serving = health_pb2.HealthCheckResponse.SERVING
    not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        await health.set(ready=True)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == serving
        await health.set(ready=False)
        assert (await watch.read()).status == not_serving
        for name in READINESS:
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == not_serving
        assert (await stub.Check(health_pb2.HealthCheckRequest(service="liveness"))).status == serving
        watch.cancel()
    await server.stop(0)
