"""Where in a rendered prompt the history ends: at the end of the last reply, or where the text first depends on a later
message, for templates that write the results of tools inside the turn of the reply that asked for them.

Owns one question and two ways to answer it. A template computes each fragment of its output when it is asked for it,
so the fragments that stand when it goes on from the reply to a later message are the prompt up to the reply's end: the
messages from the last reply on are handed over as dicts that note when they are read, which costs next to nothing.
Where that cannot be told, a second rendering with every later message changed parts from the first where the history
ends. Refuses to know templates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from extproc.prompts.message_shapes import marked_after

Message = Mapping[str, Any]
Note = Callable[[str], None]
Run = Callable[[Sequence[Message], list[str]], str]  # renders messages; puts each piece into the list as it is made


def render(run: Run, messages: Sequence[Message], *, ahead: bool) -> tuple[str, int]:
    """The text of a prompt, and how many of its characters are history: all of them where nothing follows a reply.

    `ahead` says that the template is known to write of later messages before it is through with a reply.
    """
    reply = next((i for i in reversed(range(len(messages))) if messages[i]["role"] == "assistant"), -1)
    if reply in (-1, len(messages) - 1):
        text = run(messages, [])
        return text, len(text)
    progress = Progress(messages, reply)
    text = run(progress.messages, progress.fragments)
    found = None if ahead else progress.history()
    if found is None:
        found = agreement(text, run(marked_after(messages, reply), []))
    return text, min(found, len(text))


def writes_ahead(run: Run, messages: Sequence[Message]) -> bool:
    """Whether the template writes something of the messages after the last reply where the notes say that the reply is
    still going on. Raises whatever the template raises."""
    _, noted = render(run, messages, ahead=False)
    _, compared = render(run, messages, ahead=True)
    return noted > compared


class Progress:
    """Follows one rendering, which puts each fragment into `fragments` as it is made."""

    def __init__(self, messages: Sequence[Message], reply: int) -> None:
        """`reply` is the index of the last assistant message; a message must follow it."""
        self.fragments: list[str] = []
        self.messages: list[Message] = [
            *messages[: max(0, reply - 1)],
            *(_Noted(message, self._earlier_is_read) for message in messages[max(0, reply - 1) : reply]),
            _Noted(messages[reply], self._reply_is_read),
            *(_Noted(message, self._later_is_read) for message in messages[reply + 1 :]),
        ]
        self._begin: int | None = None  # fragments that stood when the template came to the reply
        self._end: int | None = None  # ... and when it went on to a later message
        self._told: int | None = None  # ... and when it last read more of a later message than its role
        self._doubtful = False  # something was written between that and its return to the reply

    def history(self) -> int | None:
        """Characters up to the end of the last reply. None where that cannot be told: of a template that writes nothing
        between the two, as one that collects its output in a variable does, and of one that goes back to the reply
        after it wrote of a later message."""
        if self._doubtful or self._begin is None or self._end is None or self._begin == self._end:
            return None
        return sum(map(len, self.fragments[: self._end]))

    def _earlier_is_read(self, _: str) -> None:
        self._told = None  # the template looked through all messages, and begins only now to write them

    def _reply_is_read(self, key: str) -> None:
        if self._end is not None and key == "role":
            return  # a later message looks back, as many do to group the results of tools
        if self._begin is None or self._end is not None:  # for the first time, or again: many scan before they write
            self._doubtful = self._doubtful or (self._told is not None and self._told < len(self.fragments))
            self._begin = len(self.fragments)
            self._end = None

    def _later_is_read(self, key: str) -> None:
        if self._begin is None:
            return
        if key != "role":
            self._told = len(self.fragments)
        if self._end is None:
            self._end = len(self.fragments)


class _Noted(dict[str, Any]):
    """A message that tells when one of its values is read."""

    def __init__(self, message: Message, note: Note) -> None:
        super().__init__(message)
        self._note = note

    def __getitem__(self, key: str) -> Any:
        self._note(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As dict.get."""
        self._note(key)
        return super().get(key, default)


def agreement(one: str, other: str) -> int:
    """How many characters two texts share from the beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
