"""What an Envoy YAML says of the Envoy itself: what it lets us ask for, and how many headers it lets through."""

from __future__ import annotations

from extproc.base.model import Gateway
from extproc.config.topology import Chain, Topology


def gateway(found: Topology) -> Gateway:
    """Of several listeners the least, since a stream does not tell which one it belongs to."""
    if not found.chains:
        return Gateway()
    obey = {obeys_overrides(chain) for chain in found.chains}
    limits = [header_limits(chain) for chain in found.chains]
    return Gateway(
        overrides=obey.pop() if len(obey) == 1 else None,
        max_headers=min(count for count, _ in limits),
        max_header_bytes=min(size for _, size in limits),
    )


def obeys_overrides(chain: Chain) -> bool | None:
    """Whether Envoy takes another processing mode from us; None where only some modes are allowed."""
    message = chain.filter.message
    if not message.allow_mode_override:
        return False
    return None if message.allowed_override_modes else True


def header_limits(chain: Chain) -> tuple[int, int]:
    """The number of header lines of a request, and the bytes of their names and values, that Envoy lets through."""
    message, defaults = chain.manager.message, Gateway()
    options = message.common_http_protocol_options
    count = options.max_headers_count if options else None
    size = message.max_request_headers_kb
    return count or defaults.max_headers, size * 1024 if size else defaults.max_header_bytes
