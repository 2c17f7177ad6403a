"""What makes an Envoy configuration reach the picker by TLS."""

from __future__ import annotations

from typing import Any

CONTEXT = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"


def reach_by_tls(tree: Any) -> None:
    """TLS with HTTP/2 that nobody verifies, as gateways of the Inference Extension do it, health checks included."""
    (extproc,) = (cluster for cluster in tree["static_resources"]["clusters"] if cluster["name"] == "extproc")
    extproc["transport_socket"] = {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {"@type": CONTEXT, "common_tls_context": {"alpn_protocols": ["h2"]}},
    }
    for endpoint in extproc["load_assignment"]["endpoints"][0]["lb_endpoints"]:
        del endpoint["endpoint"]["health_check_config"]  # health is on the gRPC port too, by TLS like all of it
