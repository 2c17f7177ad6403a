"""Configuration: an Envoy YAML -> frozen settings, with every mistake reported at its place.

    inspection   the whole way
    nodes        YAML as a tree that knows file, line and path
    envoy_types  nodes as envoy-data-plane's typed messages
    field_values values as the fields of those messages read them
    topology     listeners -> ext_proc filters -> routes -> clusters
    metadata     the keys under `filter_metadata.smetric`
    pools        a cluster -> PoolSettings
    health_check its health check, where we can repeat it
    gateway      what Envoy lets us ask for, and how many headers it lets through
    standalone   a file of pools alone, where a gateway writes the rest
    checks/      the traps, one function each
    report       problems, and what was understood, as text
    settings     the result

Nothing here listens, connects or resolves; `instances/discovery.py` does that with the settings.

Importing this package is cheap: it imports the readers when something is read, because Envoy's types alone take longer
to import than most of the product.
"""

from __future__ import annotations

from pathlib import Path

from extproc.base.errors import ConfigError
from extproc.config.report import Problem, Report, Server, Severity
from extproc.config.settings import Discovery, DnsFamily, Endpoint, HealthCheck, PoolSettings, Settings, instances

__all__ = [
    "Discovery",
    "DnsFamily",
    "Endpoint",
    "HealthCheck",
    "PoolSettings",
    "Problem",
    "Report",
    "Server",
    "Settings",
    "Severity",
    "eds_endpoints",
    "inspect",
    "instances",
    "load",
]


def load(path: Path) -> Settings:
    """The settings in an Envoy YAML. Raises OSError, and ConfigError where it has errors; its text is the report."""
    report = inspect(path)
    if report.settings is None:
        raise ConfigError(report.render())
    return report.settings


def inspect(path: Path) -> Report:
    """An Envoy YAML's settings, unless there are errors, and every problem.

    Raises OSError where the file cannot be read, and nothing else.
    """
    from extproc.config import inspection

    return inspection.inspect(path)


def eds_endpoints(path: Path, service: str, problems: list[Problem]) -> tuple[Endpoint, ...]:
    """The endpoints that an EDS file (a DiscoveryResponse) gives a cluster.

    Raises OSError or nodes.Malformed.
    """
    from extproc.config import pools

    return pools.eds_endpoints(path, service, problems)
