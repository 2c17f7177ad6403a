"""YAML as a tree with places: every value has its file, line and path. The only user of PyYAML.

Reads what Envoy reads: keys in snake_case or camelCase, JSON, the first document of a file, anchors, no merge keys;
plain scalars by yaml-cpp's rules rather than YAML 1.1's. Knows nothing of what the values mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 100  # Envoy's own configuration is about 30 deep
MAX_NODES = 1_000_000  # aliases expanded

_INTEGER = re.compile(r"[-+]?[0-9]{1,19}")
_FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_TRUE = frozenset({"y", "yes", "true", "on"})
_FALSE = frozenset({"n", "no", "false", "off"})
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_UPPER = re.compile(r"[A-Z]")
_WORD = re.compile(r"\w+")


class Malformed(Exception):
    """The text is not YAML that we can use; `line` is where, 1 for the first."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the document. `path` is how an operator writes it: `static_resources.clusters[1].name`."""

    raw: yaml.Node
    file: str
    line: int  # of its key, or of itself in a list
    path: str = ""

    @property
    def place(self) -> str:
        """`file:line path`, as problems name it."""
        return f"{self.file}:{self.line} {self.path}".rstrip()

    def entries(self) -> Iterator[tuple[str, Node]]:
        """Keys and values of a mapping, keys as written; nothing for any other value."""
        if isinstance(self.raw, yaml.MappingNode):
            for key, value in self.raw.value:
                if isinstance(key, yaml.ScalarNode):
                    step = key.value if _WORD.fullmatch(key.value) else f'["{key.value}"]'
                    dot = "." if self.path and not step.startswith("[") else ""
                    yield key.value, Node(value, self.file, key.start_mark.line + 1, f"{self.path}{dot}{step}")

    def items(self) -> Iterator[Node]:
        """The values of a list; nothing for any other value."""
        if isinstance(self.raw, yaml.SequenceNode):
            for index, value in enumerate(self.raw.value):
                yield Node(value, self.file, value.start_mark.line + 1, f"{self.path}[{index}]")

    def get(self, *steps: str | int) -> Node | None:
        """The value at a path of keys (snake_case; the document may use camelCase) and indices, or None."""
        node: Node | None = self
        for step in steps:
            if node is None:
                return None
            node = _child(node, step)
        return node

    def near(self, *steps: str | int) -> Node:
        """The value at the path, or the deepest one on the way to it: where something missing would belong."""
        node = self
        for step in steps:
            child = _child(node, step)
            if child is None:
                break
            node = child
        return node

    def every(self, *keys: str) -> Iterator[Node]:
        """The values at a path of keys whose lists are gone through item by item."""
        if not keys:
            yield self
            return
        child = _child(self, keys[0])
        if child is not None:
            for node in child.items() if isinstance(child.raw, yaml.SequenceNode) else (child,):
                yield from node.every(*keys[1:])

    @property
    def is_mapping(self) -> bool:
        """Whether the value has keys."""
        return isinstance(self.raw, yaml.MappingNode)

    @property
    def type_name(self) -> str:
        """The full name of the message in a google.protobuf.Any, without the URL before it; empty for other values."""
        url = self.get("@type")
        return str(url.plain()).rpartition("/")[2] if url is not None else ""

    def find(self, type_name: str) -> Iterator[Node]:
        """Every google.protobuf.Any of this type in the tree, however deep it is wrapped."""
        if self.type_name == type_name:
            yield self
        for _, node in self.entries():
            yield from node.find(type_name)
        for node in self.items():
            yield from node.find(type_name)

    def plain(self) -> Any:
        """The value as dict, list, str, int, float, bool or None. Any messages within are left out."""
        if isinstance(self.raw, yaml.MappingNode):
            return {key: node.plain() for key, node in self.entries() if node.get("@type") is None}
        if isinstance(self.raw, yaml.SequenceNode):
            return [node.plain() for node in self.items() if node.get("@type") is None]
        return _scalar(self.raw)


def read(path: Path) -> Node:
    """The first document of a file. Raises OSError or Malformed."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise Malformed(f"it is larger than {MAX_BYTES >> 20} MiB", 1)
    try:
        return parse(data.decode(), str(path))
    except UnicodeDecodeError as error:
        raise Malformed("it is not UTF-8 text", data[: error.start].count(b"\n") + 1) from error


def parse(text: str, file: str) -> Node:
    """The first document of a text. Raises Malformed."""
    try:
        loader = _LOADER(text)
        try:
            raw = loader.get_node() if loader.check_node() else None
        finally:
            loader.dispose()
        if raw is not None:
            _measure(raw)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Malformed(f"{error.problem or error}", mark.line + 1 if mark else 1) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise Malformed(str(error).partition("\n")[0], 1) from error
    if raw is None:
        raise Malformed("it is empty", 1)
    return Node(raw, file, raw.start_mark.line + 1)


def _measure(root: yaml.Node) -> None:
    """Refuse a tree that would take for ever to walk: aliases to themselves, or doubled many times."""
    measured: dict[int, tuple[int, int] | None] = {}  # id -> values within, levels within; None while being measured

    def measure(node: yaml.Node) -> tuple[int, int]:
        if isinstance(node, yaml.ScalarNode):
            return 1, 0
        if id(node) not in measured:
            measured[id(node)] = None
            values = [pair[1] for pair in node.value] if isinstance(node, yaml.MappingNode) else node.value
            within = [measure(value) for value in values]
            measured[id(node)] = (
                1 + sum(size for size, _ in within),
                1 + max((depth for _, depth in within), default=0),
            )
        found = measured[id(node)]
        if found is None:
            raise Malformed("an alias refers to what contains it", node.start_mark.line + 1)
        return found

    size, depth = measure(root)
    if size > MAX_NODES:
        raise Malformed(f"its aliases stand for more than {MAX_NODES:,} values", 1)
    if depth > MAX_DEPTH:
        raise Malformed(f"it is nested {depth} levels deep, more than {MAX_DEPTH}", 1)


def _child(node: Node, step: str | int) -> Node | None:
    if isinstance(step, int):
        return next((item for index, item in enumerate(node.items()) if index == step), None)
    found = None
    for key, value in node.entries():
        if step in (key, snake_case(key)):
            found = value  # the last one counts where a key is written twice
    return found


def snake_case(name: str) -> str:
    """A key as Envoy's documentation writes it."""
    return _UPPER.sub(lambda match: "_" + match[0].lower(), name)


def _scalar(raw: yaml.Node) -> str | int | float | bool | None:
    text = str(raw.value)
    if getattr(raw, "style", None):  # quoted, or a block of text
        return text
    lower = text.lower()
    if text in _NULL:
        return None
    if lower in _TRUE:
        return True
    if lower in _FALSE:
        return False
    if _INTEGER.fullmatch(text):
        return int(text)
    if lower.startswith("0x") and len(text) <= 18:
        try:
            return int(text, 16)
        except ValueError:
            return text
    return float(text) if _FLOAT.fullmatch(text) else text
