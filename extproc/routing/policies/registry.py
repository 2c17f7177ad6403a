"""The policies by name: every module of this package that has a `choose`. A new policy is a new file, nothing else.

A policy's name is its file's with dashes; an option is a keyword-only parameter of `choose`, named on the wire
`x-smetric-` and the parameter with dashes.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Protocol

import extproc.routing.policies
from extproc.routing.policies import Verdict, View


class Policy(Protocol):
    """A policy's `choose`; options are keyword-only."""

    def __call__(self, view: View, **options: float) -> Verdict: ...


DEFAULT = "smetric"


@cache
def _modules() -> Mapping[str, ModuleType]:
    names = sorted(module.name for module in pkgutil.iter_modules(extproc.routing.policies.__path__))
    found = ((name, import_module(f"extproc.routing.policies.{name}")) for name in names)
    return {name.replace("_", "-"): module for name, module in found if hasattr(module, "choose")}


def names() -> tuple[str, ...]:
    """Every policy, in alphabetical order."""
    return tuple(_modules())


def get(name: str) -> Policy:
    """The policy's function. Raises KeyError for a name that is none of `names()`."""
    choose: Policy = module(name).choose
    return choose


def module(name: str) -> ModuleType:
    """The policy's module; its docstring is the policy's documentation. Raises KeyError as `get`."""
    return _modules()[name]


def options(name: str) -> Mapping[str, float]:
    """The policy's options and their defaults. Raises KeyError for a name that is none of `names()`."""
    parameters = inspect.signature(get(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
