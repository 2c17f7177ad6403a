"""The forms of options that several commands have."""

from __future__ import annotations

import pytest

from extproc.cli import main


@pytest.mark.parametrize("listen", ["9002", "localhost", "127.0.0.1:99999", ":9002", "127.0.0.1:http"])
def test_a_wrong_address_is_explained(listen: str, capsys: pytest.CaptureFixture[str]) -> None:
    """argparse says what the form is."""
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--envoy-yaml", "x", "--listen", listen])
    assert "HOST:PORT" in capsys.readouterr().err
