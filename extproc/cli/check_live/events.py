"""KV events and their replay: whether a publisher is where `kv_events` says, and whether `kv_replay` answers."""

from __future__ import annotations

from typing import Final

from extproc.base.model import Instance
from extproc.cli.check_live import zmtp
from extproc.cli.check_live.findings import Finding, failed, ok, unknown
from extproc.cli.check_live.network import attempt, host_and_port
from extproc.kv_events.engines import UnusableEvents, frames

_PUBLISHERS: Final = ("PUB", "XPUB")
_REPLAYERS: Final = ("ROUTER",)
_NEVER: Final = 2**62  # no engine has come so far: its answer is the end alone, whatever it remembers
_OURS: Final = ("*", "0.0.0.0", "::")  # noqa: S104 - addresses at which we listen for engines

_START = 'start vLLM with --kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq", '
_EVENTS_REMEDY: Final = _START + '"endpoint": "tcp://*:5557"}\', or correct kv_events'
_REPLAY_REMEDY: Final = _START + '"replay_endpoint": "tcp://*:5558", ...}\', or correct kv_replay'
_SWAPPED: Final = "kv_events and kv_replay name each other's ports: swap them"


async def events(pool: str, instance: Instance) -> Finding:
    """Whether engine events are published at the instance's address."""
    address = str(instance.kv_events)
    what = f"{pool} {instance.name} events {address}"
    host, port = host_and_port(address)
    if host in _OURS:
        return unknown(what, "the engine connects to this port of the router")

    async def greet() -> Finding:
        async with zmtp.peer(host, port) as peer:
            if peer.kind in _PUBLISHERS:
                return ok(what, f"a {peer.kind} socket")
            remedy = _SWAPPED if peer.kind in _REPLAYERS else _EVENTS_REMEDY
            return failed(what, f"a {peer.kind} socket, which publishes nothing", remedy)

    return await attempt(greet(), lambda reason: failed(what, reason, _EVENTS_REMEDY))


async def replay(pool: str, instance: Instance) -> Finding:
    """Whether lost events can be asked for at the instance's address."""
    address = str(instance.kv_replay)
    what = f"{pool} {instance.name} replay {address}"
    host, port = host_and_port(address)

    async def ask() -> Finding:
        async with zmtp.peer(host, port) as peer:
            if peer.kind not in _REPLAYERS:
                remedy = _SWAPPED if peer.kind in _PUBLISHERS else _REPLAY_REMEDY
                return failed(what, f"a {peer.kind} socket, which replays nothing", remedy)
            try:
                answer = frames.replayed(await peer.ask(frames.request(_NEVER)))
            except UnusableEvents as error:
                return failed(what, f"its answer is no replay ({error})", _REPLAY_REMEDY)
            return ok(
                what, f"answers ({'nothing' if answer.sequence == frames.END else 'more than asked for'} to replay)"
            )

    return await attempt(ask(), lambda reason: failed(what, reason, _REPLAY_REMEDY))
