"""The keys under `filter_metadata.smetric`: names, types, ranges, and a helpful message for every mistake."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from extproc.config.nodes import Node
from extproc.config.report import Problem, error
from extproc.config.settings import ADDRESS
from extproc.routing.route_settings import meant

PACE_KEYS = ("prefill_byte_us", "prefill_depth_bytes", "prefill_fetch_us")
CLUSTER_KEYS = ("model_dir", "models", "prompt_block_bytes", "source", "engine", *PACE_KEYS)
ENDPOINT_KEYS = ("kv_events", "kv_replay", "role", "data_parallel_size")
_HOME = {CLUSTER_KEYS: "the cluster", ENDPOINT_KEYS: "an endpoint (an item of lb_endpoints)"}

_ZMQ = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")
_PLACEHOLDER = re.compile(r"\{[^{}]*\}|[{}]")
_LISTENING = frozenset({"*", "0.0.0.0", "[::]"})  # noqa: S104 - addresses to refuse
MAX_PORT = 65535

E = TypeVar("E", bound=StrEnum)


class Fields:
    """One mapping of our metadata. Each getter gives a valid value, or None after reporting what is wrong with it."""

    def __init__(self, node: Node | None, keys: tuple[str, ...], problems: list[Problem]) -> None:
        self._values: dict[str, Node] = {}
        self._problems = problems
        if node is None:
            return
        if not node.is_mapping:
            self._error(node, "smetric is not a mapping", f"write keys under it: {', '.join(keys)}")
        for key, value in node.entries():
            if key in self._values:
                self._error(value, f"{key} is written twice", "keep one of the two")
            if key in keys:
                self._values[key] = value
            else:
                self._unknown(key, value, keys)

    def node(self, key: str) -> Node | None:
        """Where the key's value is written, if it is."""
        return self._values.get(key)

    def text(self, key: str) -> str | None:
        """A string that is not empty."""
        node = self._values.get(key)
        if node is None:
            return None
        value = node.plain()
        if not isinstance(value, str) or not value:
            self._error(node, f"{key} is {_kind(value)}, not a string", f"write {key} as a string")
            return None
        return value

    def texts(self, key: str) -> frozenset[str]:
        """A list of strings; a single string counts as a list of one."""
        node = self._values.get(key)
        if node is None:
            return frozenset()
        values = node.plain()
        values = [values] if isinstance(values, str) else values
        if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
            self._error(node, f"{key} is {_kind(values)}, not a list of strings", f"write {key}: [name, ...]")
            return frozenset()
        return frozenset(values)

    def integer(self, key: str, low: int, high: int, default: int) -> int:
        """A whole number from low to high."""
        node = self._values.get(key)
        if node is None:
            return default
        value = node.plain()
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            shown = value if isinstance(value, int | float) and not isinstance(value, bool) else _kind(value)
            advice = f"write a whole number from {low:,} to {high:,}, without quotes; the default is {default}"
            self._error(node, f"{key} is {shown}, which is out of range or no whole number", advice)
            return default
        return value

    def above_nothing(self, key: str) -> float | None:
        """A number above 0; None where there is none."""
        node = self._values.get(key)
        if node is None:
            return None
        value = node.plain()
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            shown = value if isinstance(value, int | float) and not isinstance(value, bool) else _kind(value)
            self._error(node, f"{key} is {shown}", "write a number above 0, or leave it out: it is learnt then")
            return None
        return float(value)

    def word(self, key: str, words: type[E]) -> E | None:
        """One word of a closed list."""
        text = self.text(key)
        if text is None:
            return None
        try:
            return words(text)
        except ValueError:
            known = [word.value for word in words]
            self._error(self._values[key], _joined(f"{key} is {text!r}", meant(text, known)), _one_of(known))
            return None

    def zmq(self, key: str, ranks: int, *, may_listen: bool = False) -> str | None:
        """The ZMQ address of rank 0; the ports of all ranks must exist.

        `may_listen`: an address on which the router listens and the engine connects; not vLLM's own `*`, copied.
        """
        text = self.text(key)
        if text is None:
            return None
        node = self._values[key]
        advice = f'write "tcp://{ADDRESS}:5557" ({ADDRESS} is replaced by the IP address) or tcp://HOST:PORT'
        unfilled = next((found for found in _PLACEHOLDER.findall(text) if found != ADDRESS), None)
        if unfilled is not None:
            self._error(node, _joined(f"{key}: nobody fills in {unfilled}", meant(unfilled, [ADDRESS])), advice)
            return None
        match = _ZMQ.fullmatch(text)
        if match is None:
            self._error(node, f"{key} is {text!r}, not an address that we can connect to", advice)
            return None
        if match["host"] in _LISTENING and (not may_listen or match["host"] == "*"):
            self._error(node, f"{key} is {text!r}, which is where an engine listens, not where it is", advice)
            return None
        if not 0 < int(match["port"]) <= MAX_PORT - ranks + 1:
            self._error(node, f"{key} is {text!r}, whose ports (one a rank) do not all exist", advice)
            return None
        return text

    def _unknown(self, key: str, value: Node, keys: tuple[str, ...]) -> None:
        for others, home in _HOME.items():
            if key in others:
                self._error(value, f"{key} does not belong here", f"write it in the metadata of {home}")
                return
        text = _joined(f"unknown key {key!r}", meant(key, keys))
        self._error(value, text, f"known here are {', '.join(keys)}")

    def _error(self, node: Node, message: str, advice: str) -> None:
        self._problems.append(error(node.place, message, advice))


def _kind(value: object) -> str:
    if value is None or value == "":
        return "empty"
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "a mapping",
    }
    return names.get(type(value), "something else")


def _joined(text: str, meaning: str) -> str:
    return f"{text}: {meaning}" if meaning else text


def _one_of(words: Iterable[str]) -> str:
    return f"write one of {', '.join(words)}"
