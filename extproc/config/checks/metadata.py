"""Checks of what stands under `smetric`: model files, event addresses, and what they must be together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from extproc.base.errors import ConfigError
from extproc.base.model import Source
from extproc.config.checks.shared import Pools
from extproc.config.report import Problem, error, warning
from extproc.config.settings import Endpoint, PoolSettings, instances
from extproc.config.topology import SMETRIC, Topology
from extproc.prompts.renderer import Renderer
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from extproc.routing.route_settings import suggest

_METADATA = ("metadata", "filter_metadata", SMETRIC)


def misspelt(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Metadata under a name that nearly is ours."""
    for cluster in topology.clusters.values():
        for part in (cluster.node, *cluster.node.every("load_assignment", "endpoints", "lb_endpoints")):
            metadata = part.get("metadata", "filter_metadata")
            for key, node in metadata.entries() if metadata is not None else ():
                if key != SMETRIC and suggest(key.lower(), (SMETRIC,)).startswith("did you mean"):
                    yield warning(node.place, f"nobody reads metadata under {key!r}", f"write {SMETRIC}")


def model_files(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """The directory holds what renders a prompt and what turns tokens into bytes."""
    for name, pool in pools.items():
        place = topology.clusters[name].node.near(*_METADATA, "model_dir").place
        directory = pool.model_dir
        if directory is None:
            text = f"{name} has no model_dir: prompts cannot be rendered, and load alone decides"
            yield warning(place, text, "write model_dir: DIRECTORY with the model's tokenizer.json and chat template")
        elif not directory.is_dir():
            advice = "write the directory that holds tokenizer.json; a relative path starts at the YAML's directory"
            yield error(place, f"model_dir {directory} is no directory", advice)
        else:
            load = (Renderer.load, Vocabulary.load) if pool.source is Source.EVENTS else (Renderer.load,)
            for reason in dict.fromkeys(filter(None, (_refusal(read, directory) for read in load))):
                yield error(place, reason, "copy tokenizer.json and the chat template from the model's repository")


def event_source(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """`source: events` needs model files and engines that publish events."""
    for name, pool in pools.items():
        node = topology.clusters[name].node.near(*_METADATA)
        if pool.source is not Source.EVENTS:
            if any(endpoint.kv_events for endpoint in pool.endpoints) and pool.model_dir is None:
                text = f"{name}: kv_events are not followed without a model_dir, which turns tokens into text"
                yield warning(node.place, text, "write model_dir: DIRECTORY")
            continue
        if pool.model_dir is None:
            text = f"{name}: source is events, but without model files token ids cannot be turned into text"
            yield error(node.near("source").place, text, "write model_dir: DIRECTORY, or source: routed")
        silent = [endpoint for endpoint in pool.endpoints if endpoint.kv_events is None]
        if silent:
            named = ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in silent[:3])
            more = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
            text = f"{name}: no kv_events at {named}{more}: nothing is known of their caches, no session stays there"
            yield error(node.place, text, "write kv_events in the endpoints' metadata, or source: routed here")
        if any(endpoint.kv_events and not endpoint.kv_replay for endpoint in pool.endpoints):
            text = f"{name}: without kv_replay an instance's cache is unknown after each start of ours and each lost "
            text += "event, until its engine has replaced it"
            advice = 'write kv_replay: "tcp://{address}:5558", and a replay_endpoint in vLLM\'s --kv-events-config'
            yield warning(node.place, text, advice)


def distinct_addresses(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """No two instances publish at one address; with data-parallel ranks the ports must not run into each other."""
    for name, pool in pools.items():
        place = topology.clusters[name].node.near("load_assignment").place
        seen: dict[str, str] = {}
        for address, owner in _addresses(pool):
            if address in seen:
                text = f"{name}: {address} belongs to {seen[address]} and to {owner}; rank r takes the port + r"
                yield error(place, text, "give each instance an address of its own, and ranks ports far enough apart")
                break
            seen[address] = owner


def _addresses(pool: PoolSettings) -> Iterator[tuple[str, str]]:
    for endpoint in pool.endpoints:
        for instance in instances(endpoint, endpoint.host):
            for kind, address in (("kv_events", instance.kv_events), ("kv_replay", instance.kv_replay)):
                if address is not None:
                    yield address, f"{kind} of {_owner(endpoint, instance.rank)}"


def _owner(endpoint: Endpoint, rank: int | None) -> str:
    return f"{endpoint.host}:{endpoint.port}" + ("" if rank is None else f" rank {rank}")


def _refusal(read: Callable[[Path], object], directory: Path) -> str:
    try:
        read(directory)
    except ConfigError as reason:
        return str(reason)
    return ""


CHECKS: Final = (misspelt, model_files, event_source, distinct_addresses)
