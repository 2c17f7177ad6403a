"""The `x-smetric-*` metadata of a gRPC stream: which pool, which policy, which options. Pure; used for every stream.

Envoy sends the ext_proc filter's metadata with a route's own laid over it, key by key. A route that changes the policy
therefore still carries the filter's options: an option that only another policy knows is left out, not refused.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from extproc.base.errors import ConfigError
from extproc.base.headers import TOKEN
from extproc.base.model import Disaggregation
from extproc.routing.policies import registry

PREFIX = "x-smetric-"
CLUSTER = "x-smetric-cluster"
POLICY = "x-smetric-policy"
MAX_LOAD = "x-smetric-max-load"
MAX_BODY = "x-smetric-max-body"
DISAGGREGATION = "x-smetric-disaggregation"
PREFILL_TIMEOUT = "x-smetric-prefill-timeout"
SHADOW = "x-smetric-shadow"
# All others are options of policies.
OWN = (CLUSTER, POLICY, MAX_LOAD, MAX_BODY, DISAGGREGATION, PREFILL_TIMEOUT, SHADOW, TOKEN)

# Envoy waits for an answer of ours at most an hour, and two prefills may be tried.
MAX_PREFILL_TIMEOUT_S = 1_740.0


@dataclass(frozen=True, slots=True)
class RouteSettings:
    """What one route asks for: its pool, and the policy that chooses from it. `options` is complete.

    `cluster` may name several pools, separated by commas: the request's model chooses among them.
    """

    cluster: str
    policy: str = "smetric"
    options: Mapping[str, float] = field(default_factory=dict)
    max_load: float = math.inf  # requests in flight of an instance; where all have so many, requests are shed
    max_body: float = 16 * 1024 * 1024  # bytes of a body that is read; agents send 0.2 to 4 MB, with images 10
    disaggregation: Disaggregation = Disaggregation.SIDECAR
    prefill_timeout_s: float = 60.0  # of one prefill request that we send (FILTER); two are tried

    shadows: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # policies to watch, with their options

    @property
    def clusters(self) -> tuple[str, ...]:
        """The pools; the first is taken where none of them knows the model."""
        return cluster_names(self.cluster)


def cluster_names(text: str) -> tuple[str, ...]:
    """The names in a value of `x-smetric-cluster`."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def route_settings(metadata: Mapping[str, str], default: RouteSettings | None) -> RouteSettings:
    """What a stream's metadata asks for; `default` supplies the pool and the policy that it does not name.

    Raises ConfigError for an unknown policy, key or value, and where neither names a pool.
    """
    asked = default or RouteSettings("", registry.DEFAULT)
    cluster, policy, max_load = asked.cluster, asked.policy, asked.max_load
    disaggregation, prefill_timeout_s = asked.disaggregation, asked.prefill_timeout_s
    max_body = asked.max_body
    shadows = tuple(asked.shadows)
    given: dict[str, float] = {}
    for key, value in metadata.items():
        if not key.startswith(PREFIX) or key == TOKEN:
            continue
        if key == CLUSTER:
            cluster = value
        elif key == POLICY:
            policy = known_policy(value)
        elif key == MAX_LOAD:
            max_load = option_value(key, value)
        elif key == MAX_BODY:
            max_body = option_value(key, value)
        elif key == DISAGGREGATION:
            disaggregation = known_mode(value)
        elif key == PREFILL_TIMEOUT:
            prefill_timeout_s = prefill_timeout(value)
        elif key == SHADOW:
            shadows = known_policies(value)
        else:
            given[known_option(key)] = option_value(key, value)
    if not cluster:
        raise ConfigError(f"no {CLUSTER} names the pool")
    options = dict(_defaults(policy))
    if default and default.policy == policy:
        options |= default.options
    options |= {name: value for name, value in given.items() if name in options}
    watched = {name: _shadow_options(name, given, asked) for name in shadows}
    return RouteSettings(
        cluster,
        policy,
        options,
        max_load=max_load,
        max_body=max_body,
        disaggregation=disaggregation,
        prefill_timeout_s=prefill_timeout_s,
        shadows=watched,
    )


def _shadow_options(policy: str, given: Mapping[str, float], default: RouteSettings) -> Mapping[str, float]:
    options = {**_defaults(policy), **default.shadows.get(policy, {})}
    return options | {name: value for name, value in given.items() if name in options}


def known_policy(name: str) -> str:
    """The name itself. Raises ConfigError where no policy has it."""
    if name not in registry.names():
        raise ConfigError(f"unknown policy {_short(name)!r}: {suggest(name, registry.names())}")
    return name


def known_policies(text: str) -> tuple[str, ...]:
    """The policies in a list joined by commas. Raises ConfigError where one is unknown."""
    return tuple(known_policy(name.strip()) for name in text.split(",") if name.strip())


def known_mode(name: str) -> Disaggregation:
    """The mode of that name. Raises ConfigError where there is none."""
    try:
        return Disaggregation(name)
    except ValueError:
        raise ConfigError(f"unknown {DISAGGREGATION} {_short(name)!r}: {suggest(name, Disaggregation)}") from None


def prefill_timeout(text: str) -> float:
    """Seconds that one prefill may take. Raises ConfigError for anything but a number above 0 that Envoy can wait."""
    value = option_value(PREFILL_TIMEOUT, text)
    if not 0 < value <= MAX_PREFILL_TIMEOUT_S:
        raise ConfigError(f"{PREFILL_TIMEOUT} is {_short(text)!r}: write seconds, up to {MAX_PREFILL_TIMEOUT_S:g}")
    return value


def known_option(key: str) -> str:
    """The option behind a key, such as `hit_ratio`. Raises ConfigError where no policy has it."""
    name = _options().get(key)
    if name is None:
        raise ConfigError(f"unknown key {_short(key)!r}: {suggest(key, (*OWN, *_options()))}")
    return name


def option_value(key: str, text: str) -> float:
    """The number that an option is set to. Raises ConfigError for anything but a finite number >= 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"{key} is {_short(text)!r}: write a number of 0 or more")
    return value


def suggest(word: str, known: Iterable[str]) -> str:
    """What the writer of an unknown word may have meant."""
    names = list(known)
    return meant(word, names) or f"known are {', '.join(names)}"


def meant(word: str, known: Iterable[str]) -> str:
    """The same, and empty where no known word resembles it: for a message whose advice lists them anyway."""
    close = difflib.get_close_matches(_short(word), list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""


def _short(text: str) -> str:
    """A value may come from a client's header (`%REQ(...)%`), as long as it likes."""
    return text if len(text) <= 80 else f"{text[:80]}..."


@cache
def _defaults(policy: str) -> Mapping[str, float]:
    return registry.options(policy)


@cache
def _options() -> Mapping[str, str]:
    """Key on the wire -> option, of all policies together."""
    options = (option for policy in registry.names() for option in registry.options(policy))
    return {PREFIX + option.replace("_", "-"): option for option in options}
