"""Envoy's ext_proc service: the gRPC server, the order of a stream's messages, and what Envoy reads of a decision."""
