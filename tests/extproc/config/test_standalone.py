"""A file of pools alone: what a gateway that writes Envoy's configuration leaves for us to know."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest

from extproc import config
from extproc.config import Discovery, Severity
from tests.support.envoy_yaml import Yaml, change, clean, inspect, path_of

DEFAULTS = "node.metadata.smetric"


@pytest.fixture
def pools() -> Yaml:
    """The shipped file without what a gateway writes."""
    yaml = clean()
    static = yaml["static_resources"]
    del static["listeners"]
    static["clusters"] = [one for one in static["clusters"] if one["name"] == "engines"]
    for key in ("load_balancing_policy", "circuit_breakers", "health_checks"):
        del static["clusters"][0][key]
    return yaml


def test_pools_alone_are_enough(pools: Yaml, tmp_path: Path) -> None:
    """No listener, no filter, nothing that obeys: the pool is followed as always, and every request asks for it."""
    report = inspect(pools, tmp_path)
    assert not report.problems
    assert report.settings is not None
    assert report.settings.pools["engines"].discovery is Discovery.STRICT_DNS
    assert report.settings.default is not None
    assert (report.settings.default.cluster, report.settings.default.policy) == ("engines", "smetric")
    assert "no listeners here: a gateway writes Envoy's configuration, which is not checked" in report.render()


def test_defaults_stand_where_no_filter_can_give_them(pools: Yaml, tmp_path: Path) -> None:
    """`node.metadata.smetric` holds what is the filter's `initial_metadata` elsewhere; quotes do not matter."""
    given = {"x-smetric-policy": "smetric", "x-smetric-overload": 2.5, "x-smetric-max-load": "200"}
    change(pools, DEFAULTS, given)
    report = inspect(pools, tmp_path)
    assert report.settings is not None
    assert report.settings.default is not None
    assert report.settings.default.options["overload"] == 2.5
    assert report.settings.default.max_load == 200
    assert "overload 2.5" in report.render()
    assert "max_load 200" in report.render()


def test_without_a_limit_nothing_is_shed(pools: Yaml, tmp_path: Path) -> None:
    """Shedding is asked for or does not happen."""
    settings = inspect(pools, tmp_path).settings
    assert settings is not None
    assert settings.default is not None
    assert settings.default.max_load == math.inf


def test_several_pools_are_all_meant(pools: Yaml, tmp_path: Path) -> None:
    """Without a word on which, the request's model chooses among all pools of the file."""
    other = copy.deepcopy(pools["static_resources"]["clusters"][0]) | {"name": "others"}
    other["metadata"]["filter_metadata"]["smetric"]["models"] = ["other"]
    pools["static_resources"]["clusters"][0]["metadata"]["filter_metadata"]["smetric"]["models"] = ["tiny"]
    pools["static_resources"]["clusters"].append(other)
    settings = inspect(pools, tmp_path).settings
    assert settings is not None
    assert settings.default is not None
    assert settings.default.clusters == ("engines", "others")


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (f"{DEFAULTS}.x-smetric-policy", "smetrik", f'{DEFAULTS}["x-smetric-policy"]'),
        (f"{DEFAULTS}.x-smetric-overlord", "2", f'{DEFAULTS}["x-smetric-overlord"]'),
        (f"{DEFAULTS}.x-smetric-max-load", "lots", f'{DEFAULTS}["x-smetric-max-load"]'),
        (f"{DEFAULTS}.x-smetric-cluster", "engine", f'{DEFAULTS}["x-smetric-cluster"]'),
        (f"{DEFAULTS}.x-smetric-hit-ratio", "80%", f'{DEFAULTS}["x-smetric-hit-ratio"]'),
        (f"{DEFAULTS}.x-smetric-hit-ratio", "%REQ(x)%", f'{DEFAULTS}["x-smetric-hit-ratio"]'),
        (f"{DEFAULTS}.policy", "smetric", f"{DEFAULTS}.policy"),
        (
            "static_resources.clusters[0].load_assignment.endpoints",
            [],
            "static_resources.clusters[0].load_assignment.endpoints",
        ),
        (
            "static_resources.clusters[0].metadata.filter_metadata.smetric.modle_dir",
            "x",
            "static_resources.clusters[0].metadata.filter_metadata.smetric.modle_dir",
        ),
    ],
)
def test_mistakes_have_their_place(pools: Yaml, tmp_path: Path, path: str, value: Any, place: str) -> None:
    """What can be judged is judged as strictly as in a whole file."""
    change(pools, path, value)
    report = inspect(pools, tmp_path)
    errors = [problem for problem in report.problems if problem.severity is Severity.ERROR]
    assert report.settings is None
    assert [path_of(problem) for problem in errors] == [place]


@pytest.mark.parametrize("present", ["static_resources.listeners", "dynamic_resources"])
def test_an_envoy_that_forgot_the_filter_is_no_such_file(pools: Yaml, tmp_path: Path, present: str) -> None:
    """With anything that leads to the cluster, a missing ext_proc filter is a mistake."""
    change(pools, present, [] if "listeners" in present else {})
    report = inspect(pools, tmp_path)
    assert report.settings is None
    assert "no ext_proc filter" in report.render()


def test_clusters_that_are_not_ours_are_no_pools(tmp_path: Path) -> None:
    """A file without a word to us is explained, not served."""
    path = tmp_path / "other.yaml"
    path.write_text("static_resources: {clusters: [{name: other}]}")
    assert config.inspect(path).settings is None
