"""The form in which a template gets its messages, as vLLM 0.32 and transformers 5.16 to 5.19 shape them.

Owns what depends on the template and not on Jinja: contents as strings or as parts, `developer` as `system`, a final
message left open, and copies with a mark for finding places in a rendering. Every function returns new lists and
leaves the messages that it gets as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from extproc.base.errors import RenderError
from extproc.requests.chat import MEDIA

Message = Mapping[str, Any]

_CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "  # transformers' own tag: a template that trims contents sees the same
MARK = "\x1a"  # stands where two renderings are to part; hardly a client sends this character
_MARKED = {"type": "text", "text": MARK}


def with_strings(messages: Sequence[Message]) -> list[Message]:
    """vLLM's content format "string": the texts of parts, joined by newlines."""
    return [
        message if isinstance(message["content"], str) else {**message, "content": _joined(message["content"])}
        for message in messages
    ]


def with_parts(messages: Sequence[Message]) -> list[Message]:
    """vLLM's content format "openai": parts, but strings for results of tools that are all text."""
    formed: list[Message] = []
    for message in messages:
        content = message["content"]
        if message["role"] == "tool":
            if not isinstance(content, str) and all(part["type"] == "text" for part in content):
                message = {**message, "content": "\n".join(part["text"] for part in content)}
        elif isinstance(content, str):
            message = {**message, "content": [{"type": "text", "text": content}]}
        formed.append(message)
    return formed


def _joined(content: Sequence[Mapping[str, Any]]) -> str:
    texts = (part.get("text") or part.get("name") for part in content if part["type"] not in MEDIA)
    return "\n".join(text for text in texts if text)


def without_developer(messages: Sequence[Message]) -> Sequence[Message]:
    """`developer` as `system`; where one of these is not the first message, all are merged into one that is."""
    if not any(message["role"] == "developer" for message in messages):
        return messages
    renamed = [
        {**{key: value for key, value in message.items() if key != "tools"}, "role": "system"}
        if message["role"] == "developer"
        else message
        for message in messages
    ]
    system = [message["content"] for message in renamed if message["role"] == "system"]
    if len(system) == 1 and renamed[0]["role"] == "system":
        return renamed
    texts = [
        content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)
        for content in system
    ]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in renamed if message["role"] != "system")]


def system_first(messages: Sequence[Message]) -> Sequence[Message]:
    """All system messages, whose contents are strings, as one that is first: vLLM's way for /v1/messages."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    if len(system) < 2 and (not system or messages[0]["role"] == "system"):
        return messages
    merged = {"role": "system", "content": "".join(text for text in system if isinstance(text, str))}
    return [merged, *(message for message in messages if message["role"] != "system")]


def opened(messages: Sequence[Message]) -> list[Message]:
    """The messages with a tag at the end of the last one's text, for `closed` to cut the rendering at."""
    *others, final = messages
    content = final["content"]
    if isinstance(content, str):
        return [*others, {**final, "content": content + _CONTINUE}]
    last = next((i for i in reversed(range(len(content))) if "text" in content[i]), None)
    if last is None:
        raise RenderError("continue_final_message: the final message has no text to continue")
    tagged = {**content[last], "text": content[last]["text"] + _CONTINUE}
    return [*others, {**final, "content": [*content[:last], tagged, *content[last + 1 :]]}]


def closed(text: str) -> str:
    """A rendering of `opened` messages up to the tag, without white space before it where the template trimmed."""
    place = text.rfind(_CONTINUE.strip())
    if place < 0:
        raise RenderError("continue_final_message: the template does not write the final message")
    return text[:place] if text.startswith(_CONTINUE, place) else text[:place].rstrip()


def marked_media(messages: Sequence[Message], *, in_place: bool) -> tuple[list[Message], list[str]]:
    """The messages with a mark where each image, audio or video goes, and what each is: its message's role, its kind.

    Templates that take strings get media in front of the message's text (`in_place` False).
    """
    marked: list[Message] = []
    kinds: list[str] = []
    for message in messages:
        content = message["content"]
        found = [] if isinstance(content, str) else [part["type"] for part in content if part["type"] in MEDIA]
        if found:
            texts = [part for part in content if part["type"] not in MEDIA]
            in_front = [_MARKED] * len(found) + texts
            parts = [_MARKED if part["type"] in MEDIA else part for part in content] if in_place else in_front
            message = {**message, "content": parts}
            kinds += [f"{message['role']} {kind}" for kind in found]
        marked.append(message)
    return marked, kinds


def marked_after(messages: Sequence[Message], reply: int) -> list[Message]:
    """The messages with a mark at the beginning of each that follows the one at index `reply`."""
    later = [
        {
            **message,
            "content": MARK + content if isinstance(content := message["content"], str) else [_MARKED, *content],
        }
        for message in messages[reply + 1 :]
    ]
    return [*messages[: reply + 1], *later]
