"""The forms of options that several commands have."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from extproc.app.options import Address, Debug
from extproc.base.errors import ConfigError
from extproc.cli import main, options


@pytest.mark.parametrize("listen", ["9002", "localhost", "127.0.0.1:99999", ":9002", "127.0.0.1:http"])
def test_a_wrong_address_is_explained(listen: str, capsys: pytest.CaptureFixture[str]) -> None:
    """argparse says what the form is."""
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--envoy-yaml", "x", "--listen", listen])
    assert "HOST:PORT" in capsys.readouterr().err


def test_where_debug_may_be() -> None:
    """At an address, or nowhere."""
    assert options.debug("[::1]:9091") == Address("::1", 9091)
    assert options.debug("off") is Debug.OFF
    with pytest.raises(argparse.ArgumentTypeError):
        options.debug("on")


def test_where_the_tokens_of_debug_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of streams, from a file and a variable of their own; an empty file is a mistake, not an open door."""
    none = argparse.Namespace(debug_token_file=None)
    assert options.debug_tokens(none) == ()
    monkeypatch.setenv("SMETRIC_DEBUG_TOKEN", "secret")
    assert options.debug_tokens(none) == ("secret",)
    file = tmp_path / "tokens"
    file.write_text("one\ntwo")
    assert options.debug_tokens(argparse.Namespace(debug_token_file=file)) == ("one", "two")
    file.write_text(" \n")
    with pytest.raises(ConfigError, match="--debug-token-file"):
        options.debug_tokens(argparse.Namespace(debug_token_file=file))


def test_where_tokens_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file, one a line, or from the environment; a command line would show them to every user."""
    none = argparse.Namespace(token_file=None)
    assert options.tokens(none) == ()
    monkeypatch.setenv("SMETRIC_TOKEN", "secret")
    assert options.tokens(none) == ("secret",)
    file = tmp_path / "tokens"
    file.write_text("new\nold\n\n")
    assert options.tokens(argparse.Namespace(token_file=file)) == ("new", "old")
