"""`extproc policies`: every policy, as its own file documents it."""

from __future__ import annotations

import argparse
import inspect
import textwrap

from extproc.routing.policies import registry

DESCRIPTION = """\
Every policy with its formula, its source, when it loses, and its options. `x-smetric-policy` in the Envoy YAML chooses
one; `x-smetric-shadow` lets others watch: the metrics then say what they would have done.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no options."""
    parser.set_defaults(log_level="warning")


def run(_: argparse.Namespace) -> int:
    """Print them; 0."""
    for name in registry.names():
        print(name)
        print(textwrap.indent((inspect.getdoc(registry.module(name)) or "").strip(), "  "))
        for option, value in registry.options(name).items():
            print(f"  option x-smetric-{option.replace('_', '-')}: {value:g} by default")
        print()
    return 0
