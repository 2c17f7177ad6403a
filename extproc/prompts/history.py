"""Where in a rendered prompt the last reply ends, learned while the template runs.

Owns one question and its trick: a template computes each fragment of its output when it is asked for it, so the
fragments that stand when it first looks at a message after the last reply are the prompt up to the reply's end. The
messages from the last reply on are handed over as dicts that note when they are read. Refuses to know templates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Note = Callable[[str], None]


class Progress:
    """Follows one rendering, which puts each fragment into `fragments` as it is made."""

    def __init__(self, messages: Sequence[Mapping[str, Any]], reply: int) -> None:
        """`reply` is the index of the last assistant message; a message must follow it."""
        self.fragments: list[str] = []
        self.messages: list[Mapping[str, Any]] = [
            *messages[:reply],
            _Noted(messages[reply], self._reply_is_read),
            *(_Noted(message, self._later_is_read) for message in messages[reply + 1 :]),
        ]
        self._begin: int | None = None  # fragments that stood when the template came to the reply
        self._end: int | None = None  # ... and when it went on to a later message

    def history(self) -> int | None:
        """Characters up to the end of the last reply. None for a template that writes nothing between the two, as one
        that collects its output in a variable does."""
        if self._begin is None or self._end is None or self._begin == self._end:
            return None
        return sum(map(len, self.fragments[: self._end]))

    def _reply_is_read(self, key: str) -> None:
        if self._end is not None and key == "role":
            return  # a later message looks back, as many do to group the results of tools
        if self._begin is None or self._end is not None:  # for the first time, or again: many scan before they write
            self._begin = len(self.fragments)
            self._end = None

    def _later_is_read(self, key: str) -> None:
        if self._begin is not None and self._end is None:
            self._end = len(self.fragments)


class _Noted(dict[str, Any]):
    """A message that tells when one of its values is read."""

    def __init__(self, message: Mapping[str, Any], note: Note) -> None:
        super().__init__(message)
        self._note = note

    def __getitem__(self, key: str) -> Any:
        self._note(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As dict.get."""
        self._note(key)
        return super().get(key, default)
