"""What of an index URL is ours, what is redis-py's, and what may be logged."""

from __future__ import annotations

import pytest

from extproc.base.errors import ConfigError
from extproc.shared_state.redis_url import RedisUrl, parse, without_secrets


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h:6379/0", RedisUrl("redis://h:6379/0", "smetric", cluster=False, budget_s=0.02)),
        ("redis://h/2?namespace=a&budget_ms=5", RedisUrl("redis://h/2", "a", cluster=False, budget_s=0.005)),
        (
            "rediss://u:p@h?cluster=yes&ssl_ca_certs=/ca",
            RedisUrl("rediss://u:p@h?ssl_ca_certs=%2Fca", "smetric", cluster=True, budget_s=0.02),
        ),
        ("unix:///run/redis.sock", RedisUrl("unix:/run/redis.sock", "smetric", cluster=False, budget_s=0.02)),
    ],
)
def test_our_options_are_taken_out(url: str, expected: RedisUrl) -> None:
    """Namespace, cluster and budget are ours; everything else is left for redis-py."""
    assert parse(url) == expected


@pytest.mark.parametrize("url", ["redis://:geheim@h/zero", "redis://:geheim@h/0?budget_ms=0&password=geheim"])
def test_mistakes_are_told_without_secrets(url: str) -> None:
    """A URL that cannot be used is shown without its password, wherever that stands."""
    with pytest.raises(ConfigError) as error:
        parse(url)
    assert "geheim" not in str(error.value)


def test_what_may_be_logged() -> None:
    """Host, port and database are shown; who we are and our options are not."""
    assert without_secrets("redis://user:geheim@h:1/0?password=geheim") == "redis://h:1/0"
