"""A workload through a live gateway, request by request, and what came of it."""
