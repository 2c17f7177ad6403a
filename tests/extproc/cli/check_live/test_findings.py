"""How findings are printed."""

from __future__ import annotations

from extproc.cli.check_live.findings import failed, ok, render, unknown


def test_failures_come_last_with_their_remedies() -> None:
    """What is well at one place is on one line; a terminal shows what is not."""
    findings = [
        failed("pool 10.0.0.1:8000", "nothing listens there", "start it"),
        ok("pool 10.0.0.2:8000", "answers"),
        unknown("ext_proc 10.0.0.9:9002", "nothing listens there yet"),
        ok("pool 10.0.0.2:8000", "serves tiny"),
    ]
    _, _, *lines = render(findings).splitlines()
    assert lines == [
        "ok       pool 10.0.0.2:8000: answers; serves tiny",
        "unknown  ext_proc 10.0.0.9:9002: nothing listens there yet",
        "FAILED   pool 10.0.0.1:8000: nothing listens there",
        "      -> start it",
        "",
        "1 of 4 failed.",
    ]


def test_addresses_stay_whole() -> None:
    """They are copied, however long they are."""
    address = "tcp://engine-with-a-long-name-" + "x-" * 60 + ":5557"
    assert address in failed(address, "nothing listens there", f"look at {address}").render()
