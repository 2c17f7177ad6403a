"""An Envoy external processor that routes LLM requests of agents to vLLM instances (the SMetric policy)."""

import os

# `serve` starts child processes while gRPC runs. They exec at once, so gRPC's preparations for a bare fork only make
# noise in the log; it reads this when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__version__ = "0.1.0"
