"""Real Envoy, Redis, routers and simulated engines as child processes, wired together for demos, tests and benches."""
