"""A file of pools alone, for a gateway that writes Envoy's configuration itself (Kubernetes, Endpoint Picker Protocol).

It is an Envoy YAML without listeners: clusters as always, and what otherwise stands in the ext_proc filter's
`initial_metadata` under `node.metadata.smetric`, since such a gateway sends none.
"""

from __future__ import annotations

from collections.abc import Mapping

from extproc.config.checks.clusters import has_endpoints
from extproc.config.checks.routes import entry
from extproc.config.nodes import Node
from extproc.config.report import Problem, error
from extproc.config.settings import PoolSettings
from extproc.config.topology import SMETRIC, Header, Topology, is_ours
from extproc.routing.route_settings import CLUSTER, PREFIX, RouteSettings, route_settings

_PLACE = ("node", "metadata", SMETRIC)
_FIXED = "write a fixed value, a number such as 0.8 or a name"


def applies(document: Node) -> bool:
    """Whether the file has clusters with our metadata, and nothing by which an Envoy could reach them."""
    if document.get("static_resources", "listeners") is not None or document.get("dynamic_resources") is not None:
        return False
    return any(is_ours(cluster) for cluster in document.every("static_resources", "clusters"))


def judge(found: Topology, pools: Mapping[str, PoolSettings], problems: list[Problem]) -> None:
    """Add what is wrong with the defaults and with the pools; what a gateway writes cannot be judged."""
    for key, header in _defaults(found).items():
        if "%" in header.written:
            problems.append(
                error(header.node.place, f"{key} is {header.written!r}: nobody fills in commands here", _FIXED)
            )
        elif key.startswith(PREFIX):
            problems.extend(entry(key, header, found))
        else:
            problems.append(error(header.node.place, f"unknown key {key!r}", "write x-smetric-* keys here"))
    problems.extend(has_endpoints(found, pools))


def default(found: Topology) -> RouteSettings:
    """What every request asks for; all pools of the file, unless one is named. For a file without errors."""
    given = {key: header.value for key, header in _defaults(found).items()}
    return route_settings({CLUSTER: ",".join(found.pools())} | given, None)


def _defaults(found: Topology) -> Mapping[str, Header]:
    node = found.document.get(*_PLACE)
    entries = node.entries() if node is not None else ()
    return {key: Header(str(value.plain()), value) for key, value in entries}
