"""Bodies that cost the reader most: one of each kind, of about the wanted size. Pure; `(path, body)` by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)


def _said(text: str) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}]}, ensure_ascii=False).encode()


def _list(head: bytes, one: bytes, size: int, tail: bytes) -> bytes:
    return head + b",".join([one] * max(1, size // (len(one) + 1))) + tail


_USER = b'{"role":"user","content":"a"}'
_ASSISTANT = b'{"role":"assistant","content":"b"}'
_ASKED = b'{"messages":[' + _USER + b"],"


def _arguments(text: str) -> bytes:
    """A tool call with these arguments."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": text}}
    asked, last = {"role": "user", "content": "a"}, {"role": "user", "content": "b"}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    return json.dumps({"messages": [asked, said, last]}).encode()


KINDS: Mapping[str, tuple[str, Callable[[int], bytes]]] = {
    "one string": (CHAT, lambda size: _said("x" * size)),
    "escapes": (CHAT, lambda size: b'{"messages":[{"role":"user","content":"' + b"\\u00e9" * (size // 6) + b'"}]}'),
    "rare ideographs": (CHAT, lambda size: _said("\U00020000" * (size // 4))),
    "combining marks in one run": (CHAT, lambda size: _said("a" + "\u0301\u0316" * (size // 4))),
    "combining marks in runs of 31": (CHAT, lambda size: _said(("a" + "\u0301\u0316" * 15 + "\u0301") * (size // 63))),
    "look-alikes of special tokens": (CHAT, lambda size: _said("<|im_start|>" * (size // 12))),
    "half look-alikes": (CHAT, lambda size: _said("<|im_staré" * (size // 11))),
    "tiny messages": (CHAT, lambda size: _list(b'{"messages":[', _USER, size, b"]}")),
    "tiny turns": (CHAT, lambda size: _list(b'{"messages":[', _USER + b"," + _ASSISTANT, size, b"," + _USER + b"]}")),
    "tools": (
        CHAT,
        lambda size: _list(
            _ASKED + b'"tools":[', b'{"type":"function","function":{"name":"f","parameters":{}}}', size, b"]}"
        ),
    ),
    "text parts": (
        CHAT,
        lambda size: _list(b'{"messages":[{"role":"user","content":[', b'{"type":"text","text":"a"}', size, b"]}]}"),
    ),
    "arguments of objects": (CHAT, lambda size: _arguments('{"a":[' + "{}," * (size // 3) + "{}]}")),
    "arguments that are Python's": (CHAT, lambda size: _arguments('{"a":[NaN' + ",[]" * (size // 3) + "]}")),
    "empty objects unread": (CHAT, lambda size: _list(_ASKED + b'"x":[', b"{}", size, b"]}")),
    "empty lists unread": (CHAT, lambda size: _list(_ASKED + b'"x":[', b"[]", size, b"]}")),
    "one huge number": (CHAT, lambda size: _ASKED + b'"x":' + b"9" * size + b"}"),
    "distinct keys": (CHAT, lambda size: _ASKED + b",".join(b'"k%d":1' % one for one in range(size // 13)) + b"}"),
    "deep lists": (CHAT, lambda size: b'{"messages":[{"role":"user","content":' + b"[" * (size // 2)),
    "deep objects": (
        CHAT,
        lambda size: (
            _ASKED
            + b'"tools":[{"type":"function","function":{"name":"f","parameters":'
            + b'{"a":' * 900
            + b"1"
            + b"}" * 900
            + b"}}]}"
        ),
    ),
    "no JSON": (CHAT, lambda size: b"x" * size),
    "wrong at the end": (CHAT, lambda size: _list(_ASKED + b'"x":[', b"{}", size, b"]")),
    "token ids": (COMPLETIONS, lambda size: _list(b'{"prompt":[', b"1", size, b"]}")),
    "prompts of one id": (COMPLETIONS, lambda size: _list(b'{"prompt":[', b"[1]", size, b"]}")),
    "marks of a template": (
        COMPLETIONS,
        lambda size: json.dumps({"prompt": "<|im_start|>assistant\n<|im_end|>\n" * (size // 36)}).encode(),
    ),
    "items": (RESPONSES, lambda size: _list(b'{"input":[', _USER, size, b"]}")),
    "calls as items": (
        RESPONSES,
        lambda size: _list(b'{"input":[', b'{"type":"function_call","name":"f","arguments":"{}"}', size, b"]}"),
    ),
    "blocks": (
        MESSAGES,
        lambda size: _list(b'{"messages":[{"role":"user","content":[', b'{"type":"text","text":"a"}', size, b"]}]}"),
    ),
}
