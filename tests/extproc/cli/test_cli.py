"""The command line: exit statuses, reports, and what it refuses before anything listens."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from extproc import cli
from extproc.app import workers
from extproc.app.node import Address, Options
from extproc.cli import main
from tests.support.paths import ROOT

SHIPPED = ROOT / "envoy" / "envoy.yaml"


def test_check_explains_a_good_file(capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped configuration is ready, and what was understood is said."""
    assert main(["check", str(SHIPPED)]) == 0
    assert "by default: pool engines by smetric" in capsys.readouterr().out


def test_check_tells_errors_from_unreadable_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1: the file has errors; 2: there is no such file."""
    bad = tmp_path / "envoy.yaml"
    bad.write_text("static_resources: {clusters: [{name: x, metadata: {filter_metadata: {smetric: {modeldir: y}}}}]}")
    assert main(["check", str(bad)]) == 1
    assert "model_dir" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "none.yaml")]) == 2
    assert "No such file" in capsys.readouterr().err


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
        (["--index", "redis://127.0.0.1:6379/zero"], "not the number of a database"),
    ],
)
def test_impossible_options_are_explained(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot work together is refused, with what to write instead."""
    assert main(["serve", "--envoy-yaml", str(SHIPPED), *options]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("listen", ["9002", "localhost", "127.0.0.1:99999", ":9002", "127.0.0.1:http"])
def test_a_wrong_address_is_explained(listen: str, capsys: pytest.CaptureFixture[str]) -> None:
    """argparse says what the form is."""
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--envoy-yaml", "x", "--listen", listen])
    assert "HOST:PORT" in capsys.readouterr().err


def test_addresses_are_written_as_grpc_reads_them() -> None:
    """IPv6 is bracketed."""
    assert str(Address("::1", 9002)) == "[::1]:9002"
    assert str(Address("0.0.0.0", 9002)) == "0.0.0.0:9002"


@pytest.mark.parametrize("command", [[], ["serve"], ["follow"], ["check"], ["policies"]])
def test_help_teaches(command: list[str]) -> None:
    """Every command explains itself, as a real process."""
    result = subprocess.run(
        [sys.executable, "-m", "extproc", *command, "--help"], capture_output=True, text=True, check=True
    )
    assert "usage: extproc" in result.stdout
    assert not result.stderr


def test_policies_are_listed_with_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Names, formulas and options, each from the policy's own file."""
    assert main(["policies"]) == 0
    listed = capsys.readouterr().out
    assert "x-smetric-hit-ratio: 0.5 by default" in listed
    assert "f = (prompt - hit) * (load + idle)" in listed


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
    told = cli._parser().parse_args(workers._worker(options, 1)[3:])
    assert (told.tls_cert, told.tls_key, told.tls_self_signed) == (options.tls_cert, options.tls_key, False)
    assert told.conformance
    told = cli._parser().parse_args(workers._worker(replace(options, tls_cert=None, tls_key=None), 1)[3:])
    assert (told.tls_cert, told.tls_key) == (None, None)
