"""Names of headers and of dynamic metadata: how Envoy, gateways, engines and clients speak to us, and we to them.

`DESTINATION`, `SERVED` and the subset hint are the Endpoint Picker Protocol's (Gateway API Inference Extension,
proposal 004).
"""

from __future__ import annotations

TOKEN = "x-smetric-token"  # noqa: S105 - its name: in a stream's metadata, says that it is Envoy who asks
TURN = "x-smetric-turn"  # a client says the turn of its session
DESTINATION = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"
NAMESPACE = "envoy.lb"
PREFILLER = "x-prefiller-host-port"  # read by llm-d's routing sidecar in front of a decode instance
SUBSET = "x-gateway-destination-endpoint-subset"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
# What the reference conformance tests of gateways steer by and look at; both only with `--conformance`.
CONFORMANCE_SELECTION = "test-epp-endpoint-selection"
CONFORMANCE_SERVED = "x-conformance-test-served-endpoint"
EXPLANATION = "smetric"  # namespace of the metadata for access logs
RANK = "x-data-parallel-rank"
POOL = "x-smetric-pool"  # set where the request's model chooses among pools: routes match it
