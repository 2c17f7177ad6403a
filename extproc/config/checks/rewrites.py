"""Checks of routes that rewrite the path: Envoy does so after this filter, which sees the client's own path.

`requests/paths.py` sees an API by the end of the path. A route may give a path that end only on the way (`/ask`, or
`/team-a/messages`): such requests are routed by load alone. To find these routes, paths that a route matches are made
up, one for each way to write the end of each API's path, and rewritten as Envoy does it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from extproc.config.checks.shared import Pools, routes_to_pools
from extproc.config.nodes import Node
from extproc.config.report import Problem, warning
from extproc.config.topology import Topology
from extproc.requests.paths import Api, api_of

Rewrite = Callable[[str], str]

_SHOWN = 2  # examples in a message
_NAME = "name"  # a model or a team in a made-up path
_SPECIFIERS = ("prefix_rewrite", "regex_rewrite", "path_rewrite_policy", "path_rewrite")

_VARIABLE = re.compile(r"\{(\w+)(?:=([^}]*))?\}|\*\*|\*")  # of a path template: {model}, {rest=**}, *, **
_ANYTHING = re.compile(r"\.[*+]\??")  # of a regular expression
_ONE_NAME = re.compile(r"(?:\[[^\]]*\]|\\[wS])[*+]\??")
_CHOICE = re.compile(r"\((?:\?:)?([^()|]+)\|[^()]*\)")
_GROUPING = re.compile(r"\((?:\?:|\?P?<\w+>)?|[)^$]")


def recognised(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A path that a rewrite turns into an API's must be recognised as that API's before."""
    routes = {route.route.node.place: route.route.node for _, route in routes_to_pools(topology)}
    for node in routes.values():
        action = node.near("route")
        specifier = next((name for name in _SPECIFIERS if _text(action.get(name))), None)
        if specifier is None:
            continue
        place = action.near(specifier).place
        try:
            rewrite = _rewrite(node)
            originals = [path for end in _ends() for path in _matching(node, end) if "//" not in path]
            led = {path: api for path in originals if (api := _served(rewrite(path))) is not None}
        except (re.error, LookupError):
            led = {}
        missed = [f"{path} (as {api})" for path, api in led.items() if api_of(path) is not api]
        advice = "let clients' paths end as the engine's do (/v1/messages), or rewrite in a filter before ext_proc"
        if missed:
            text = f"ext_proc sees the path before it is rewritten and cannot tell the API of {_listed(missed)}: "
            yield warning(place, text + "such requests are routed by load alone", advice)
        elif not led:
            text = (
                "ext_proc sees the path before it is rewritten: whether it can tell the API of requests on this route "
            )
            yield warning(place, text + "cannot be said; where it cannot, they are routed by load alone", advice)


def _listed(missed: list[str]) -> str:
    more = f" and {len(missed) - _SHOWN} more" if len(missed) > _SHOWN else ""
    return ", ".join(missed[:_SHOWN]) + more


def _ends() -> list[str]:
    """Every way to cut an API's path: "", /v1/chat/completions, chat/completions, completions ..."""
    whole = [api.value for api in Api]
    cut = [path[place:] for path in whole for place in range(len(path)) if path[place] == "/" or path[place - 1] == "/"]
    return list(dict.fromkeys(("", *cut)))


def _served(path: str) -> Api | None:
    """The API that an engine serves at exactly this path."""
    path = re.sub("/+", "/", path)
    return next((api for api in Api if api == path), None)


def _matching(route: Node, end: str) -> Iterator[str]:
    """Paths that a route matches, with this end where it leaves the end open. Names are made up."""
    match = route.near("match")
    rewritten = _text(route.get("route", "regex_rewrite", "pattern", "regex"))
    if rewritten and (made := _made_up(rewritten, end)) and _matches(match, made):
        yield made
        return  # what else the route matches may be meant for nobody
    for kind in ("prefix", "path_separated_prefix"):
        if prefix := _text(match.get(kind)):
            for front in (prefix, f"{prefix.rstrip('/')}/{_NAME}"):
                if not end or front.endswith("/") != end.startswith("/"):  # one slash between the two
                    yield front + end
    if path := _text(match.get("path")):
        yield path
    if (regex := _text(match.get("safe_regex", "regex"))) and (made := _made_up(regex, end)):
        yield made
    if template := _text(match.get("path_match_policy", "typed_config", "path_template")):
        yield _VARIABLE.sub(lambda found: end.lstrip("/") if _takes_all(found) else _NAME, template)


def _made_up(regex: str, end: str) -> str:
    """A path that an expression matches, with this end; empty where the expression is too complex."""
    path = _ONE_NAME.sub(_NAME, _ANYTHING.sub(lambda _: end, _CHOICE.sub(r"\1", regex)))
    path = _GROUPING.sub("", path).replace("\\", "")
    return path if re.fullmatch(regex, path) else ""


def _matches(match: Node, path: str) -> bool:
    prefix = _text(match.get("prefix")) or _text(match.get("path_separated_prefix"))
    regex, whole = _text(match.get("safe_regex", "regex")), _text(match.get("path"))
    return path.startswith(prefix) and (not regex or bool(re.fullmatch(regex, path))) and whole in ("", path)


def _rewrite(route: Node) -> Rewrite:
    """What Envoy makes of a path. Raises LookupError for what only a request can tell."""
    match, action = route.near("match"), route.near("route")
    if prefix := _text(action.get("prefix_rewrite")):
        matched = _text(match.get("prefix")) or _text(match.get("path_separated_prefix"))
        return lambda path: prefix + path[len(matched) :] if matched else prefix
    if pattern := _text(action.get("regex_rewrite", "pattern", "regex")):
        substitution = re.sub(r"\\(\d)", r"\\g<\1>", _text(action.get("regex_rewrite", "substitution")))
        return lambda path: re.sub(pattern, substitution, path)
    template = _text(match.get("path_match_policy", "typed_config", "path_template"))
    rewritten = _text(action.get("path_rewrite_policy", "typed_config", "path_template_rewrite"))
    if template and rewritten:
        shape = re.compile(_VARIABLE.sub(_group, template))
        return lambda path: re.sub(r"\{(\w+)\}", lambda found: _variable(shape, path, found[1]), rewritten)
    raise LookupError


def _group(found: re.Match[str]) -> str:
    inside = ".*" if _takes_all(found) else "[^/]+"
    return f"(?P<{found[1]}>{inside})" if found[1] else f"(?:{inside})"


def _variable(shape: re.Pattern[str], path: str, name: str) -> str:
    found = shape.fullmatch(path)
    if found is None:
        raise LookupError
    return found[name]


def _takes_all(found: re.Match[str]) -> bool:
    return "**" in found[0]


def _text(node: Node | None) -> str:
    return "" if node is None else str(node.raw.value)


CHECKS: Final = (recognised,)
