"""What the demo says before its parts start; imports nothing, so that it is said at once."""

from __future__ import annotations

NOTE = """\
Real: Envoy, the ext_proc server with its index, HTTP, KV events over ZMQ, tokenizer, prefix caches.
Simulated: how long the engines compute (profile "demo", no GPU) and what they answer; the agents are synthetic."""


def starting(engines: int) -> str:
    """What is said before the parts start."""
    return f"starting {engines} engines, ext_proc and Envoy ..."
