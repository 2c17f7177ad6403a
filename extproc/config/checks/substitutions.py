"""Check of the commands (`%REQ(name)%`) in `initial_metadata`: one that Envoy cannot fill in costs every decision.

Envoy accepts it at its start, opens no stream to us at any request, and `failure_mode_allow` hides that. The metadata
is one list: a bad entry for another server costs our decisions too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from extproc.config.report import Problem, error, warning
from extproc.config.topology import Header
from extproc.routing.route_settings import PREFIX, meant

# Those of Envoy 1.40 that have a value when a request arrives; beside them DOWNSTREAM_*.
KNOWN: Final = (
    "CLUSTER_METADATA", "COALESCE", "CONNECTION_ID", "CUSTOM_FLAGS", "DYNAMIC_METADATA", "ENVIRONMENT",
    "FILTER_CHAIN_NAME", "FILTER_STATE", "HOSTNAME", "METADATA", "PATH", "PROTOCOL", "QUERY_PARAM", "QUERY_PARAMS",
    "REQ", "REQUEST_HEADER", "REQUESTED_SERVER_NAME", "ROUTE_NAME", "SPAN_ID", "START_TIME", "START_TIME_LOCAL",
    "STREAM_ID", "TRACE_ID", "UPSTREAM_CLUSTER", "UPSTREAM_CLUSTER_RAW", "VIRTUAL_CLUSTER_NAME",
)  # fmt: skip
_FAMILY = "DOWNSTREAM_"
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")


def commands(key: str, header: Header) -> Iterator[Problem]:
    """What Envoy does not understand in the value of one entry."""
    place = header.node.place
    if header.malformed:
        share = _SHARE.fullmatch(header.written)
        number = f"{float(share[1]) / 100:g}" if share else "a number, such as 0.8"
        advice = f"write {number}" if key.startswith(PREFIX) else "write %% for a percent sign"
        text = f"{key} is {header.written!r}: Envoy takes % for a command and drops every decision"
        yield error(place, text, f"{advice}; a command has the form %REQ(name)%")
    for name in header.commands:
        if name not in KNOWN and not name.startswith(_FAMILY):
            text = f"{key}: %{name}% is no command that we know; where Envoy does not know it, it drops every decision"
            yield warning(place, text, meant(name, KNOWN) or "%REQ(name)% is a header of the request")
