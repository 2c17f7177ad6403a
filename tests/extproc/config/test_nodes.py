"""YAML as Envoy reads it, with places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from extproc import config
from extproc.config.nodes import Malformed, parse
from tests.support.envoy_yaml import ROOT, clean


def camel(tree: Any) -> Any:
    """The tree with camelCase keys, but for what is no field of Envoy's: extension names and our own metadata."""
    if isinstance(tree, list):
        return [camel(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    changed = {}
    for key, value in tree.items():
        head, *tail = key.split("_")
        name = key if "." in key else head + "".join(word.capitalize() for word in tail)
        changed[name] = value if key == "filter_metadata" else camel(value)
    return changed


def test_camel_case_and_json_are_read_as_envoy_reads_them(tmp_path: Path) -> None:
    """Envoy takes keys in either case and JSON for YAML; so do we."""
    path = tmp_path / "envoy.json"
    text = config.load(ROOT / "envoy" / "envoy.yaml")

    def camel(tree: Any) -> Any:
        if isinstance(tree, dict):
            # What is below filter_metadata are our own keys; types and extension names are no field names.
            return {
                _camel(k) if k != "model_dir" else k: v if k == "filter_metadata" else camel(v) for k, v in tree.items()
            }
        return [camel(item) for item in tree] if isinstance(tree, list) else tree

    def _camel(key: str) -> str:
        head, *tail = key.split("_")
        return key if "." in key else head + "".join(word.capitalize() for word in tail)

    path.write_text(json.dumps(camel(clean()), indent=1), "utf-8")
    found = config.load(path)
    assert (found.pools, found.default) == (text.pools, text.default)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5), ("-7", -7), ("0x10", 16), ("007", 7), ("0.5", 0.5), (".5", 0.5), ("1e3", 1000.0),
        ("99999999999999999999", 1e20), ("1:30", "1:30"), ("2020-01-01", "2020-01-01"), ("1_000", "1_000"),
        ("yes", True), ("Off", False), ("~", None), ("null", None), ("", None), ("'5'", "5"), ("'yes'", "yes"),
        ("text", "text"), ("0xzz", "0xzz"), ("!!str 5", 5),
    ],
)  # fmt: skip
def test_plain_scalars_are_read_by_yaml_cpps_rules(text: str, value: object) -> None:
    """No YAML 1.1 surprises (sexagesimal, dates), but its booleans, which Envoy shares."""
    node = parse(f"a: {text}", "x").get("a")
    assert node is not None
    assert node.plain() == value
    assert type(node.plain()) is type(value)


def test_malformed_yaml_names_its_line() -> None:
    """An operator looks there first."""
    with pytest.raises(Malformed) as refused:
        parse("a: 1\nb: [1, 2\nc: 3\n", "x")
    assert refused.value.line == 3
