"""What each engine's KV cache holds, from the engine's own events: ZMQ, gaps and restarts, wire formats, the mirror."""
