"""The processes of one `serve`: what they are told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from extproc.app import workers
from extproc.app.options import Address, Options
from extproc.cli import command_line
from tests.support.paths import ROOT

SHIPPED = ROOT / "envoy" / "envoy.yaml"


def test_workers_are_told_all_that_concerns_a_stream() -> None:
    """A worker that served plaintext beside one that serves TLS would fail every second request."""
    address = Address("127.0.0.1", 9002)
    options = Options(
        envoy_yaml=SHIPPED,
        listen=address,
        health=address,
        metrics=address,
        index="redis://127.0.0.1/0",
        workers=2,
        drain_timeout_s=1.0,
        follow=True,
        until_stdin_closes=False,
        tls_cert=Path("cert.pem"),
        tls_key=Path("key.pem"),
        conformance=True,
    )
    told = command_line.parse(workers._worker(options, 1)[3:])
    assert (told.tls_cert, told.tls_key, told.tls_self_signed) == (options.tls_cert, options.tls_key, False)
    assert told.conformance
    told = command_line.parse(workers._worker(replace(options, tls_cert=None, tls_key=None), 1)[3:])
    assert (told.tls_cert, told.tls_key) == (None, None)
