"""Chat templates: compiled, run and looked into exactly as the engine does it.

Owns the Jinja environment of transformers' `apply_chat_template` (5.16 to 5.19, which vLLM 0.32 runs) and vLLM's rule
for whether a template wants contents as strings or as parts. Refuses to know requests and tokenizers. A template is
the operator's; it runs in the sandbox that transformers runs it in. A little over 300 lines, since the sandbox, its
filters and what is read off a compiled template all depend on the same private parts of Jinja.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from extproc.base.errors import ConfigError, RenderError
from extproc.prompts.tokenizer.files import read_json

Clock = Callable[[], datetime]

_ATTRIBUTES_OF_DICT = frozenset(dir(dict))
_ATTRIBUTES_OF_LOOP = frozenset({"first", "index", "index0", "last", "length", "nextitem", "previtem"})
_ENCODER = json.JSONEncoder(ensure_ascii=False)
_ALLOWANCE = "the allowance"  # variables that no template can name
# Characters and items that namespaces may be given, about one second of copying. A template that collects its output in
# one copies all of it with every message; an agent's request of 1 MB in 500 messages may do so four times a message.
_MAX_COPIED = 1 << 30
_COPIES = "the copies"
_TOO_LONG = "the template makes far more text of the request than it holds"


def sources(directory: Path, config: Mapping[str, Any]) -> Mapping[str, str]:
    """The templates of a model directory by name, looked for where transformers looks: `default`, perhaps `tool_use`.

    `config` is tokenizer_config.json. Raises ConfigError where there is no default template.
    """
    found: dict[str, str] = {}
    try:
        for path in sorted(directory.glob("additional_chat_templates/*.jinja")):
            found[path.stem] = path.read_text(encoding="utf-8")
        single = directory / "chat_template.jinja"
        if single.exists():
            found["default"] = single.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"model_dir {directory}: a chat template cannot be read: {error}") from error
    if not found:
        legacy = read_json(directory / "chat_template.json") or {}  # of a processor; the tokenizer's own goes first
        given = config.get("chat_template") or legacy.get("chat_template")
        if isinstance(given, str):
            found["default"] = given
        elif isinstance(given, list):
            found = {str(each.get("name")): str(each.get("template")) for each in given if isinstance(each, dict)}
    if "default" not in found:
        raise ConfigError(
            f"model_dir {directory} has no chat template: copy chat_template.jinja (or a tokenizer_config.json with "
            "`chat_template`) from the model, or save there what the engines get with --chat-template"
        )
    return found


class ChatTemplate:
    """One compiled template. Raises ConfigError where it does not compile."""

    def __init__(self, source: str, clock: Clock) -> None:
        environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["namespace"] = _namespace
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: clock().strftime(pattern)
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
        except TemplateError as error:
            raise ConfigError(f"the chat template does not compile: {error}") from error
        self.wants_parts = _wants_parts(tree)
        self.collects = _collects(tree)
        self.names_developer = '"developer"' in source or "'developer'" in source
        self.source = source

    def run(self, variables: Mapping[str, Any], limit: int, fragments: list[str] | None = None) -> str:
        """The text that the template makes of the variables. Each piece of it is put into `fragments` as it is made.

        Raises RenderError where it would be longer than `limit` characters, or where the template dumps more than
        that as JSON, and whatever the template raises.
        """
        fragments = [] if fragments is None else fragments
        append = fragments.append
        given = {**variables, _ALLOWANCE: _Allowance(limit), _COPIES: _Allowance(_MAX_COPIED)}
        left = limit
        for fragment in self._template.root_render_func(self._template.new_context(given)):
            append(fragment)
            left -= len(fragment)
            if left < 0:
                raise RenderError(_TOO_LONG)
        return "".join(fragments)


class _Allowance:
    """How much may still be made that the output need not show: JSON, which indentation makes long, or copies."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def spend(self, made: str | list[Any]) -> None:
        """Raises RenderError where this is more than what is left."""
        self._left -= len(made)
        if self._left < 0:
            raise RenderError(_TOO_LONG)


class _Namespace(Namespace):
    """Jinja's namespace, with an allowance: `ns.text = ns.text + ...` in a loop copies all text every time."""

    copies: _Allowance

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(value, str | list):
            object.__getattribute__(self, "copies").spend(value)
        super().__setitem__(name, value)


@pass_context
def _namespace(context: Context, *args: Any, **kwargs: Any) -> _Namespace:
    made = _Namespace(*args, **kwargs)
    made.copies = context.parent[_COPIES]
    return made


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with short ways to `message.role` and `loop.index0`, which are most of what a template does.

    They lead where the long way leads: a dict has no attribute of another name, and the sandbox lets a loop show these.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in _ATTRIBUTES_OF_DICT:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        if kind is LoopContext and attribute in _ATTRIBUTES_OF_LOOP:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; a prompt only shows its contents."""

    tags = {"generation"}  # noqa: RUF012 -- as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_show"), [], [], body).set_lineno(line)

    def _show(self, caller: Macro) -> str:
        return caller()


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    allowance: _Allowance = context.parent[_ALLOWANCE]
    if not ensure_ascii and indent is None and separators is None and not sort_keys:
        text = _ENCODER.encode(value)  # without building an encoder for every tool call
        allowance.spend(text)
        return text
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    pieces = []
    for piece in (encoder.encode(value),) if indent is None else encoder.iterencode(value):
        allowance.spend(piece)
        pieces.append(piece)
    return "".join(pieces)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _collects(tree: nodes.Template) -> bool:
    """Whether the template keeps all that it has written in a namespace, and copies it with every message: long
    requests of many messages then cost their length times their number."""
    return any(
        isinstance(assigned.target, nodes.NSRef)
        and any(_grows(made, assigned.target) for made in (assigned.node, *assigned.node.find_all(nodes.Expr)))
        for assigned in tree.find_all(nodes.Assign)
    )


def _grows(made: nodes.Node, kept: nodes.NSRef) -> bool:
    """Whether an expression adds text to what is kept, and not a number."""
    if not isinstance(made, nodes.Add | nodes.Concat):
        return False
    parts = made.nodes if isinstance(made, nodes.Concat) else [made.left, made.right]
    counts = any(isinstance(part, nodes.Const) and isinstance(part.value, int) for part in parts)
    return not counts and any(
        isinstance(part, nodes.Getattr)
        and isinstance(part.node, nodes.Name)
        and (part.node.name, part.attr) == (kept.name, kept.attr)
        for part in parts
    )


def _wants_parts(tree: nodes.Template) -> bool:
    """Whether the template loops over a message's content: vLLM's sign (renderers/hf.py) that it wants parts, not text.

    Where the tree has a shape that makes vLLM's own search fail, its default counts: strings.
    """
    try:
        return _loops_over_content(tree)
    except _Unexpected:
        return False


class _Unexpected(Exception):
    """A loop or assignment over messages whose target is no plain name."""


def _loops_over_content(tree: nodes.Template) -> bool:
    lists = _message_lists(tree)
    loops = list(tree.find_all(nodes.For))
    items = [_name(loop.target) for loop in loops if any(_is_access(loop.iter, name) for name in lists)]
    macros = list(tree.find_all(nodes.Macro))
    in_macros = {id(loop) for macro in macros for loop in macro.find_all(nodes.For)}
    parameters = {
        id(loop): content
        for macro in macros
        if (content := _content_parameters(tree, macro, items))
        for loop in macro.find_all(nodes.For)
    }
    for loop in loops:
        if any(_is_access(loop.iter, item, "content") for item in items) or (
            isinstance(loop.iter, nodes.Name)
            and (
                loop.iter.name in parameters.get(id(loop), ())
                or (loop.iter.name == "content" and id(loop) not in in_macros)
            )
        ):
            _name(loop.target)
            return True
    return False


def _message_lists(tree: nodes.Template) -> list[str]:
    """`messages`, and the variables that it or a slice or filter of it is assigned to."""
    names = ["messages"]
    for name in names:  # grows while it is read
        for assignment in tree.find_all(nodes.Assign):
            if _is_access(assignment.node, name) and (target := _name(assignment.target)) not in names:
                names.append(target)
    return names


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, items: list[str]) -> set[str]:
    """Parameters of a macro that some call hands a message's content."""
    names = [argument.name for argument in macro.args]
    found: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
            given = [*zip(names, call.args, strict=False), *((each.key, each.value) for each in call.kwargs)]
            found.update(
                name
                for name, value in given
                if name in names and any(_is_access(value, item, "content") for item in items)
            )
    return found


def _is_access(node: nodes.Node | None, variable: str, key: str | None = None) -> bool:
    """Whether a node is the variable (or its item `key`), perhaps filtered, tested or sliced."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if key is not None:
        node = _owner(node, key)
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == variable


def _owner(node: nodes.Node | None, key: str) -> nodes.Node | None:
    """What `node` takes the item `key` of."""
    if isinstance(node, nodes.Getattr) and node.attr == key:
        return node.node
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == key:
        return node.node
    return None


def _name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _Unexpected
    return target.name
