"""The settings of a route from a stream's metadata."""

from __future__ import annotations

import pytest

from extproc.base.errors import ConfigError
from extproc.routing.policies import registry
from extproc.routing.route_settings import RouteSettings, route_settings

DEFAULT = RouteSettings("engines", "smetric", {"overload": 3.0, "overload_floor": 0.0, "hit_ratio": 0.25})


def test_a_stream_without_metadata_uses_the_default() -> None:
    """Entries of other filters do not count."""
    assert route_settings({"user-agent": "grpc", "x-other": "1"}, DEFAULT) == DEFAULT


def test_a_stream_changes_what_it_names_and_no_more() -> None:
    """One option alone; the default's other options stay."""
    changed = route_settings({"x-smetric-hit-ratio": "0.75"}, DEFAULT)
    assert changed == RouteSettings("engines", "smetric", {"overload": 3.0, "overload_floor": 0.0, "hit_ratio": 0.75})


def test_another_policy_has_its_own_options() -> None:
    """Envoy still sends the filter's options beside a route's policy: they are left out, not refused."""
    changed = route_settings({"x-smetric-policy": "round-robin", "x-smetric-hit-ratio": "0.5"}, DEFAULT)
    assert changed == RouteSettings("engines", "round-robin", {})


@pytest.mark.parametrize("policy", registry.names())
def test_every_policy_is_known_with_all_its_options(policy: str) -> None:
    """A new file among the policies needs no change here."""
    options = registry.options(policy)
    metadata = {f"x-smetric-{name.replace('_', '-')}": str(value + 1) for name, value in options.items()}
    found = route_settings(metadata | {"x-smetric-policy": policy}, DEFAULT)
    assert found.options == {name: value + 1 for name, value in options.items()}


@pytest.mark.parametrize(
    "metadata",
    [
        {"x-smetric-policy": "smetrik"},
        {"x-smetric-hits": "1"},
        {"x-smetric-hit-ratio": ""},
        {"x-smetric-hit-ratio": "nan"},
        {"x-smetric-overload": "-inf"},
        {"x-smetric-overload": "1e999"},
        {"x-smetric-policy": "x" * 100_000},
        {"x-smetric-" + "y" * 100_000: "1"},
    ],
)
def test_what_cannot_be_used_is_refused_in_few_words(metadata: dict[str, str]) -> None:
    """A value may come from a client's header: whatever it is costs a short message and nothing else."""
    with pytest.raises(ConfigError) as refused:
        route_settings(metadata, DEFAULT)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "-1"])
@pytest.mark.parametrize("policy", registry.names())
def test_no_option_of_any_policy_takes_what_it_cannot_compute_with(policy: str, value: str) -> None:
    """An infinite weight times nothing is no number, and no instance could be chosen: each option is finite, from 0."""
    for option in registry.options(policy):
        with pytest.raises(ConfigError, match="write a number of 0 or more"):
            route_settings({"x-smetric-policy": policy, f"x-smetric-{option.replace('_', '-')}": value}, DEFAULT)


def test_shadow_policies_come_with_their_options() -> None:
    """A list of names; each takes its own options from the same keys, the others' are left out."""
    metadata = {"x-smetric-shadow": "bailian, least-loaded", "x-smetric-weight": "0.9"}
    found = route_settings(metadata, DEFAULT)
    assert found.shadows == {"bailian": {"weight": 0.9}, "least-loaded": {}}
    assert route_settings({}, found).shadows == found.shadows
    with pytest.raises(ConfigError, match="unknown policy 'bailan': did you mean bailian"):
        route_settings({"x-smetric-shadow": "bailan"}, DEFAULT)
