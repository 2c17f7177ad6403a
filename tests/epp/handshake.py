"""TLS handshakes with whatever listens on a port of this machine."""

from __future__ import annotations

import socket
import ssl
from typing import NamedTuple

from extproc.processor import tls


class Handshake(NamedTuple):
    """What a client learns."""

    protocol: str | None
    certificate: bytes


def shake(port: int) -> Handshake:
    """One TLS handshake of a client that offers HTTP/2 first, as Envoy does, and verifies nothing."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection(("127.0.0.1", port), 10) as plain, context.wrap_socket(plain) as secured:
        certificate = secured.getpeercert(binary_form=True)
        assert certificate is not None
        return Handshake(secured.selected_alpn_protocol(), certificate)


def der(pair: tls.Pair) -> bytes:
    """A pair's certificate as a handshake shows it."""
    return ssl.PEM_cert_to_DER_cert(pair.certificate.decode())
