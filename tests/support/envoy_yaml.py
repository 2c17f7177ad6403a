"""The shipped Envoy configurations as trees that a test may change, and paths into them."""

from __future__ import annotations

import copy
import functools
import json
import re
from pathlib import Path
from typing import Any, Final

import yaml as pyyaml

from extproc import config
from extproc.config import Problem, Report

ROOT: Final = Path(__file__).parents[2]
SHIPPED: Final = sorted((ROOT / "envoy").glob("*.yaml"))
MODEL: Final = ROOT / "loadgen" / "engine" / "model"
DELETE: Final = object()

Yaml = dict[str, Any]


@functools.cache
def _read(path: Path) -> str:
    return json.dumps(pyyaml.safe_load(path.read_text("utf-8")))


def clean(path: Path = ROOT / "envoy" / "envoy.yaml") -> Yaml:
    """A copy of a shipped configuration, nothing in it shared between places; the model is the repository's."""
    tree: Yaml = json.loads(_read(path))
    for entry in tree["static_resources"]["clusters"]:
        smetric = entry.get("metadata", {}).get("filter_metadata", {}).get("smetric", {})
        if "model_dir" in smetric:
            smetric["model_dir"] = str(MODEL)
    return tree


def listener(yaml: Yaml) -> Yaml:
    """The listener."""
    found: Yaml = yaml["static_resources"]["listeners"][0]
    return found


def manager(yaml: Yaml) -> Yaml:
    """The HTTP connection manager."""
    found: Yaml = listener(yaml)["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def ext_proc(yaml: Yaml) -> Yaml:
    """The ext_proc filter."""
    (found,) = (f["typed_config"] for f in manager(yaml)["http_filters"] if f["name"].endswith("ext_proc"))
    typed: Yaml = found
    return typed


def cluster(yaml: Yaml, name: str) -> Yaml:
    """A cluster by name."""
    (found,) = (entry for entry in yaml["static_resources"]["clusters"] if entry["name"] == name)
    typed: Yaml = found
    return typed


def change(tree: Any, path: str, value: Any) -> None:
    """Set what is at a path such as `a.b[0].c`, making mappings on the way, or remove it (DELETE)."""
    steps: list[Any] = [int(step[1:-1]) if step[0] == "[" else step for step in re.findall(r"\[\d+\]|[^.\[\]]+", path)]
    for step in steps[:-1]:
        tree = tree.setdefault(step, {}) if isinstance(tree, dict) else tree[step]
    if value is DELETE:
        del tree[steps[-1]]
    else:
        tree[steps[-1]] = copy.deepcopy(value)


def write(yaml: Yaml, directory: Path) -> Path:
    """The tree as a file."""
    path = directory / "envoy.yaml"
    path.write_text(pyyaml.safe_dump(yaml, sort_keys=False), "utf-8")
    return path


def inspect(yaml: Yaml, directory: Path) -> Report:
    """What `check` says of it."""
    return config.inspect(write(yaml, directory))


def read(yaml: Yaml, directory: Path) -> config.Settings:
    """Its settings; there must be no errors in it."""
    report = inspect(yaml, directory)
    assert report.settings is not None, report.render()
    return report.settings


def path_of(problem: Problem) -> str:
    """The path in a problem's place, without file and line."""
    return problem.place.partition(" ")[2]
