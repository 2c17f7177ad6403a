"""`extproc serve`: what it refuses before anything listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.cli import main
from tests.support.paths import ROOT

SHIPPED = ROOT / "envoy" / "envoy.yaml"


def test_serve_refuses_a_wrong_configuration_with_the_same_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is bound; the report is the one of `check`."""
    bad = tmp_path / "envoy.yaml"
    bad.write_text(SHIPPED.read_text().replace("x-smetric-overload, value", "x-smetric-overlord, value"))
    assert main(["check", str(bad)]) == 1
    report = capsys.readouterr().out
    assert main(["serve", "--envoy-yaml", str(bad)]) == 1
    assert capsys.readouterr().err.strip() == report.strip()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "2"], "add --index redis://"),
        (["--workers", "2", "--index", "redis://127.0.0.1:1/0", "--health", "127.0.0.1:9012"], "come to port 9012"),
        (["--index", "mysql://x"], "names no index"),
        (["--tls-cert", "cert.pem"], "belong together"),
        (["--tls-cert", "cert.pem", "--tls-key", "none.pem"], "No such file"),
        (["--tls-cert", "a", "--tls-key", "b", "--tls-self-signed"], "exclude each other"),
        (["--tls-client-ca", "clients.crt"], "needs TLS"),
        (["--token-file", "/dev/null"], "holds no token"),
        (["--index", "redis://127.0.0.1:6379/zero"], "not the number of a database"),
    ],
)
def test_impossible_options_are_explained(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot work together is refused, with what to write instead."""
    assert main(["serve", "--envoy-yaml", str(SHIPPED), *options]) == 1
    assert message in capsys.readouterr().err
