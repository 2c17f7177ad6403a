"""What is said of a configuration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from extproc import config
from extproc.base.errors import ConfigError
from tests.support.envoy_yaml import DELETE, ROOT, change, clean, cluster, ext_proc, inspect


def test_a_report_puts_errors_first_and_says_what_it_means(tmp_path: Path) -> None:
    """Severity, place, remedy; a summary in the last line."""
    yaml = clean()
    change(ext_proc(yaml), "message_timeout", DELETE)
    change(cluster(yaml, "engines"), "metadata.filter_metadata.smetric.source", "event")
    change(cluster(yaml, "engines"), "metadata.filter_metadata.smetric.models", 5)
    text = inspect(yaml, tmp_path).render()
    assert text.startswith(f"error: {tmp_path}/envoy.yaml:")
    assert text.index("did you mean events?") < text.index("-> write one of events, routed") < text.index("warning: ")
    errors = re.findall(r"^error: \S+:(\d+) ", text, re.MULTILINE)
    assert errors == sorted(errors, key=int)
    assert text.splitlines()[-1].endswith("2 errors, 1 warning. The server does not start with errors.")
    with pytest.raises(ConfigError, match="did you mean events"):
        config.load(tmp_path / "envoy.yaml")


def test_a_report_of_a_good_file_explains_it() -> None:
    """Pools, instances, routes, in words."""
    text = config.inspect(ROOT / "envoy" / "envoy.yaml").render()
    for words in (
        "pool engines: endpoints by DNS",
        "engine-3:8000",
        "by smetric (overload 2",
        "envoy.yaml is ready for ext_proc; ",
    ):
        assert words in text
