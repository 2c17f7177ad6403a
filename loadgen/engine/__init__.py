"""The simulated vLLM: its HTTP APIs, scheduler, block cache and KV events, byte for byte; only GPU time is made up."""
