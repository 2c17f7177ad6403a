"""What `serve` and `follow` do alike: where the index's URL comes from, and how they end."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from extproc.app.options import Address, Options
from extproc.base.errors import ConfigError
from extproc.cli import long_running, options
from extproc.config import Settings
from tests.support.paths import ROOT

SHIPPED = ROOT / "envoy" / "envoy.yaml"
NOWHERE = Address("", 0)


@pytest.fixture(autouse=True)
def sighup() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def run(*arguments: str, yaml: Path = SHIPPED, refusal: str = "") -> tuple[int, str]:
    """The status, and the index that was started with."""
    parser = argparse.ArgumentParser()
    options.add_index(parser, "the index")
    options.add_envoy_yaml(parser)
    started = []

    def options_of(_: argparse.Namespace, index: str) -> Options:
        return Options(NOWHERE, NOWHERE, NOWHERE, index, 1, 0.0, follow=True)

    async def start(_: Settings, given: Options) -> None:
        started.append(given.index)
        if refusal:
            raise ConfigError(refusal)

    status = long_running.run(parser.parse_args(["--envoy-yaml", str(yaml), *arguments]), options_of, start)
    return status, "".join(started)


def test_where_the_index_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line, from a file, from the environment; else it is this process's own."""
    file = tmp_path / "index"
    file.write_text("redis://file/0\n")
    assert run() == (0, "memory://")
    monkeypatch.setenv("SMETRIC_INDEX", "redis://environment/0")
    assert run() == (0, "redis://environment/0")
    assert run("--index-file", str(file)) == (0, "redis://file/0")
    assert run("--index", "redis://line/0") == (0, "redis://line/0")


def test_a_password_on_the_command_line_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """There every user of the machine can read it; elsewhere none can."""
    run("--index", "redis://line/0")
    (tmp_path / "index").write_text("redis://:geheim@file/0")
    run("--index-file", str(tmp_path / "index"))
    assert "--index-file" not in caplog.text
    run("--index", "redis://:geheim@line/0")
    assert "use --index-file or SMETRIC_INDEX" in caplog.text
    assert "geheim" not in caplog.text


def test_how_it_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1 where something is refused, 2 where a file cannot be read, and the file is named."""
    assert run(refusal="the port is taken") == (1, "memory://")
    assert run(yaml=tmp_path / "none.yaml") == (2, "")
    assert run("--index-file", str(tmp_path / "none")) == (2, "")
    told = capsys.readouterr().err.splitlines()
    assert told == ["the port is taken"] + [
        f"{tmp_path}/{name}: No such file or directory" for name in ("none.yaml", "none")
    ]
