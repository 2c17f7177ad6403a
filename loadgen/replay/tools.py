"""Definitions of tools that come to a given number of tokens in a prompt. Knows of a template only what it renders."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.engine.chat_template import ChatTemplate
from loadgen.engine.tokenizer import Tokens
from loadgen.json_types import Json

NAMES = ("read_file", "write_file", "run_command", "search", "list_files", "apply_patch", "fetch_page", "run_tests")
_PROPERTIES = {"path": {"type": "string"}, "line": {"type": "integer"}}
_PARAMETERS = {"type": "object", "properties": _PROPERTIES, "required": ["path", "line"]}


class Tools:
    """Tools for one model."""

    def __init__(self, tokens: Tokens, template: ChatTemplate, word: str) -> None:
        """`word`: one that is a single token, with its space in front."""
        self._tokens = tokens
        self._template = template
        self._plain = self._rendered([])
        # Of so many tools, each with a description of one word: the tokens that they take.
        self._sizes = [0] + [
            self._rendered(_defined([[word]] * count)) - self._plain for count in range(1, len(NAMES) + 1)
        ]

    def words(self, tokens: int) -> int:
        """How many words the descriptions of tools of `tokens` tokens have together; 0: there is no room for any."""
        count = self._count(tokens)
        return tokens - self._sizes[count] + count if count else 0

    def define(self, tokens: int, words: Sequence[str]) -> list[Json]:
        """Tools of `tokens` tokens, out of as many words as `words` says."""
        count = self._count(tokens)
        return _defined([words[number::count] for number in range(count)]) if count else []

    def _count(self, tokens: int) -> int:
        """The most tools that fit."""
        return max(count for count, size in enumerate(self._sizes) if size <= tokens)

    def _rendered(self, tools: list[Json]) -> int:
        body: dict[str, Json] = {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]}
        return len(self._tokens.encode(self._template.render(body | ({"tools": tools} if tools else {}))))


def _defined(descriptions: Sequence[Sequence[str]]) -> list[Json]:
    functions = (
        {"name": name, "description": "".join(words), "parameters": _PARAMETERS}
        for name, words in zip(NAMES, descriptions, strict=False)
    )
    return [{"type": "function", "function": function} for function in functions]
