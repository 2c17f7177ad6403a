"""What of an index URL is ours, what is redis-py's, and what may be logged."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.base.errors import ConfigError
from extproc.index.open import open_index
from extproc.shared_state.redis_url import RedisUrl, has_secret, parse, without_secrets


def refusal(judge: Callable[[str], object], url: str) -> str:
    """What is said of a URL that cannot be used; empty for one that can."""
    try:
        judge(url)
    except ConfigError as error:
        return str(error)
    return ""


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


@pytest.mark.parametrize(
    "url",
    [
        "redis://:geheim@h/zero",
        "redis://:geheim@h/0?budget_ms=0&password=geheim",
        "redis://h:1/0?budget_ms=geheim",
        "redis://u:ge/geheim@h:1/0",
        "redis://u:ge#geheim@h:1/0",
        "redis://u:ge?geheim@h:1/0",
        "redis://u:1/geheim@h:1/0",
        "redis://u:1?geheim@h:1/0",
        "redis://u:1#geheim@h:1/0",
        "redis://u:geheim@[::1/0",
        "redis://u:geheim",
        "redis://h:geheim/0",
        "redis://h:99999/0?password=geheim",
        "redis://u:geheim@h:1/0&cluster=true",
        "redis://h:1/0?password=ge@geheim&budget_ms=0",
        "redis://h:1/geheim@0",
    ],
)
def test_mistakes_are_told_without_secrets(url: str) -> None:
    """A URL that cannot be used is shown without its password, wherever that stands; nothing else is raised."""
    with pytest.raises(ConfigError) as error:
        parse(url)
    assert "geheim" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "geheim://x",
        "geheim",
        "redis://h:1/0?passwordd=geheim",
        "rediss://:geheim@h:1/0?ssl_ca_certs=/geheim",
        "unix://",
    ],
)
def test_what_redis_py_says_of_a_url_shows_no_secret(url: str) -> None:
    """Nor does the scheme of a URL that names no index."""
    assert "geheim" not in refusal(open_index, url)


@given(
    password=st.text(st.characters(exclude_categories=["Cs"]), min_size=4), tail=st.sampled_from(["", "/0", "/0?x=1"])
)
def test_no_password_reaches_a_message(password: str, tail: str) -> None:
    """Whatever it consists of, written as it is or encoded: an encoded one is accepted."""
    for form in (password, quote(password, safe="")):
        url = f"redis://user:geheim{form}geheim@h:1{tail}"
        assert "geheim" not in without_secrets(url) + refusal(parse, url)
    assert not refusal(parse, url)


def test_which_urls_are_secret() -> None:
    """Those that hold who we are."""
    assert has_secret("redis://:geheim@h")
    assert has_secret("redis://h?password=geheim")
    assert not has_secret("redis://h:6379/0?namespace=a")


def test_what_may_be_logged() -> None:
    """Host, port and database are shown; who we are and our options are not."""
    assert without_secrets("redis://user:geheim@h:1/0?password=geheim") == "redis://h:1/0"
    assert without_secrets("rediss://:geheim@[::1]:6379") == "rediss://[::1]:6379"
    assert without_secrets("unix:///run/redis.sock?password=geheim") == "unix:///run/redis.sock"
    assert without_secrets("memory://") == "memory://"
    assert without_secrets("geheim://x") == "..."
