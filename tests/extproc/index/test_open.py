"""Index URLs that cannot be used."""

from __future__ import annotations

import pytest

from extproc.base.errors import ConfigError
from extproc.index.open import open_index


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:6379",
        "http://127.0.0.1",
        "redis://h:port/0",
        "redis://h/0?nonsense=1",
        "redis://h/0?budget_ms=x",
        "redis://h/zero",
    ],
)
def test_a_wrong_url_is_a_configuration_error(url: str) -> None:
    """A URL that names no index, or options that the client does not know, is reported before anything starts."""
    with pytest.raises(ConfigError):
        open_index(url)


def test_a_password_is_never_shown() -> None:
    """Errors about a URL leave out what stands before the host."""
    with pytest.raises(ConfigError) as error:
        open_index("redis://user:geheim@host:port/0")
    assert "geheim" not in str(error.value)
