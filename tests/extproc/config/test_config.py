"""The face of the configuration: what the shipped file means, and that nothing in a file can hurt."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc import config
from extproc.base.model import Role, Source
from extproc.config import Discovery, DnsFamily, Endpoint, Report
from extproc.routing.route_settings import RouteSettings
from tests.support.envoy_yaml import ROOT, SHIPPED, clean, inspect


def test_the_shipped_configuration_means_what_its_comments_say() -> None:
    """Pool, endpoints, model and policy of envoy/envoy.yaml."""
    found = config.load(ROOT / "envoy" / "envoy.yaml")
    pool = found.pools["engines"]
    assert found.default == RouteSettings(
        "engines", "smetric", {"overload": 2.0, "overload_floor": 1.0, "hit_ratio": 0.5}
    )
    assert (pool.discovery, pool.dns_family, pool.dns_refresh_s) == (Discovery.STRICT_DNS, DnsFamily.V4_ONLY, 5.0)
    assert (pool.source, pool.prompt_block_bytes, pool.models) == (Source.EVENTS, 256, frozenset())
    assert pool.model_dir == (ROOT / "loadgen" / "engine" / "model").resolve()
    events, replay = "tcp://{address}:5557", "tcp://{address}:5558"
    assert pool.endpoints == tuple(Endpoint(f"engine-{n}", 8000, events, replay, Role.BOTH, 1) for n in range(4))


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    """The command line tells it from a bad file by its exit status."""
    with pytest.raises(OSError, match="nothing"):
        config.inspect(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"a: [",
        b"a: \x00",
        b"&a [*a]",
        b"[" * 100_000,
        b"\n".join(b" " * n + b"a:" for n in range(900)),
        b"a0: &a0 [1, 1]\n" + b"\n".join(b"a%d: &a%d [*a%d, *a%d]" % (n, n, n - 1, n - 1) for n in range(1, 60)),
        b"just text",
        b"- a\n- list",
        b"!!python/object/apply:os.system [exit]",
        b"static_resources: 5",
        b"static_resources: {clusters: 5, listeners: {}}",
        b"static_resources: {clusters: [null, 5, {name: null}], listeners: [[], {}]}",
        b"{? [a, b] : c, static_resources: }",
    ],
    ids=lambda content: content[:20].decode("latin1"),
)
def test_a_file_that_is_no_configuration_is_reported(content: bytes, tmp_path: Path) -> None:
    """Whatever is in it: an error with a place, and no exception."""
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    report = config.inspect(path)
    assert report.settings is None
    assert report.problems[0].place.startswith(str(path))
    assert report.render()


_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8))
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    steps = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for step, value in steps:
        found += _places(value, (*path, step))
    return found


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False), st.lists(_VALUES, min_size=1, max_size=3))
def test_no_value_anywhere_makes_reading_fail(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random, values: list[Any]
) -> None:
    """Any values put anywhere into a shipped configuration give a report that can be printed."""
    yaml = clean(rng.choice(SHIPPED))
    for value in values:
        *parents, last = rng.choice(_places(yaml))
        tree = yaml
        for step in parents:
            tree = tree[step]
        tree[last] = value
    report: Report = inspect(yaml, tmp_path_factory.getbasetemp())
    assert report.render()
    assert (report.settings is None) == any(p.severity is config.Severity.ERROR for p in report.problems)
