"""What hostile peers do: clients of Envoy, peers of the gRPC port, engines whose events lie. Each runs until killed."""
