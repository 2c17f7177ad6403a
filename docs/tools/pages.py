"""`make docs`: writes again what in docs/ is made from code, between `<!-- made: NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from prometheus_client.metrics import MetricWrapperBase

from docs.tools.state_diagrams import continuity_diagram, exchange_diagram
from extproc.base import metrics
from extproc.routing.policies import registry
from extproc.routing.route_settings import PREFIX

ROOT: Final = Path(__file__).parents[2]
_PART: Final = re.compile(r"(?P<head><!-- made: (?P<name>[a-z-]+) -->\n).*?(?P<tail><!-- end -->)", re.DOTALL)


def metrics_table() -> str:
    """Every metric by its name in Prometheus, with its labels."""
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in _metrics():
        (family,) = metric.describe()
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        lines.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(lines)


def _metrics() -> Iterator[Any]:
    yield from (value for value in vars(metrics).values() if isinstance(value, MetricWrapperBase))


def policies_table() -> str:
    """Every policy with its options and their defaults."""
    lines = ["| policy | what it does | options (default) |", "|---|---|---|"]
    for name in registry.names():
        about = (inspect.getdoc(registry.module(name)) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        options = [f"`{PREFIX}{key.replace('_', '-')}` ({value:g})" for key, value in registry.options(name).items()]
        lines.append(f"| `{name}` | {about} | {', '.join(options)} |")
    return "\n".join(lines)


def floors(package: str) -> str:
    """The rooms of a package, a line a floor, from the contract that `make check` holds."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers" and each["containers"] == [package])
    return "\n".join(["```", *layers, "```"])


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "metrics": metrics_table,
    "policies": policies_table,
    "floors-extproc": lambda: floors("extproc"),
    "floors-loadgen": lambda: floors("loadgen"),
    "exchange": exchange_diagram,
    "continuity": continuity_diagram,
}


def renewed(text: str) -> str:
    """A page with its made parts as they should be. Raises KeyError for a part that nobody makes."""
    return _PART.sub(lambda found: f"{found['head']}{PARTS[found['name']]()}\n{found['tail']}", text)


def main() -> int:
    """Write every page that has changed."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (new := renewed(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
