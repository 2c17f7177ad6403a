"""Where a process listens."""

from __future__ import annotations

import pytest

from extproc.app.options import Address


def test_addresses_are_written_as_grpc_reads_them() -> None:
    """IPv6 is bracketed."""
    assert str(Address("::1", 9002)) == "[::1]:9002"
    assert str(Address("0.0.0.0", 9002)) == "0.0.0.0:9002"


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False), ("h", False)],
)
def test_which_addresses_are_local(host: str, local: bool) -> None:
    """Only loopback addresses count: there /debug/explain is served without being asked for."""
    assert Address(host, 9090).local is local
