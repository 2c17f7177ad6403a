"""Why an engine's events, or their replay, are out of reach: what a plain connection to their address meets.

ZMQ tries again for ever and does not say what it met. It owns the question and its words; it follows nothing.
"""

from __future__ import annotations

import asyncio

LOOK_S = 2.0  # for one look: a firewall that drops packets answers nothing
UNREACHED_S = 10.0  # from the start, or from the loss of a connection, until it is said: an engine may start up so long
AGAIN_S = 600.0  # until it is said again, while it lasts


async def why_no_events(address: str, *, bound: bool) -> str:
    """What stands between us and a publisher (`tcp://host:port`), to which there is no connection."""
    if bound:
        return f"no engine has connected to {address}: its publisher must connect there (an endpoint without *)"
    return await _met(address, "--kv-events-config") or (
        f"something listens at {address}, but it does not publish over ZMQ: is it another port of the engine?"
    )


async def why_no_replay(address: str) -> str:
    """What stands between us and the replay of an engine whose events come."""
    return await _met(address, "replay_endpoint") or (
        f"something listens at {address}, but it answers no replay: is it another port of the engine?"
    )


async def _met(address: str, option: str) -> str:
    """What a connection fails by; empty where it does not fail."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not address.startswith("tcp://") or not port.isdigit():
        return f"{address} is no address of the form tcp://host:port"
    try:
        async with asyncio.timeout(LOOK_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError:
        return f"{address} does not answer: a firewall, or another host's address"
    except OSError as error:
        return f"{address}: {error.strerror or error}: is it the port of the engine's {option}?"
    writer.close()
    return ""
