"""An Envoy external processor that routes LLM requests of agents to vLLM instances (the SMetric policy)."""

__version__ = "0.1.0"
