"""Questions to a chat template, answered by rendering tiny chats, as vLLM does for some of them.

Owns the tiny chats. Refuses to know prompts and requests of clients. `Render` gives the text of a chat, or None where
the template refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from extproc.base.model import Request
from extproc.prompts.reply_marks import QUESTION, REPLY, Marks, learn

Render = Callable[[Request], str | None]
Message = Mapping[str, Any]
Judge = Callable[[Request], bool]

_TOOL: Message = {
    "type": "function",
    "function": {"name": "look", "description": "Look", "parameters": {"type": "object", "properties": {}}},
}
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def marks(render: Render) -> Marks:
    """What the template writes around a reply; nothing where it refuses or changes the tiny chats."""
    question, reply = {"role": "user", "content": QUESTION}, {"role": "assistant", "content": REPLY}
    chats = (([question], False), ([question], True), ([question, reply], False))
    asked, prompted, answered = (
        render(Request(None, 0, messages, add_generation_prompt=generates)) for messages, generates in chats
    )
    return Marks() if asked is None or prompted is None or answered is None else learn(asked, prompted, answered)


def writes_ahead(judge: Judge) -> bool:
    """Whether the template, in one of several tiny chats with tools, writes the results inside the turn of the reply
    that asked for them, unnoticed by who watches what it reads. `judge` may raise anything."""
    question: Message = {"role": "user", "content": "Which?"}
    further: Message = {"role": "user", "content": "And then?"}  # unlike the first: templates compare messages
    said: Message = {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "reasoning": "Hm."}
    asks: list[Message] = [
        {"role": "assistant", "content": "", "tool_calls": [_call("call00001")]},
        {**said, "tool_calls": [_call("call00001"), _call("call00002")]},
    ]
    results: list[Message] = [
        {"role": "tool", "content": "This one.", "tool_call_id": "call00001"},
        {"role": "tool", "content": "That one.", "tool_call_id": "call00002"},
    ]
    chats = [[question, said, further]]
    for ask in asks:
        answered = [question, ask, *results[: len(ask["tool_calls"])]]
        chats += [answered, [*answered, further]]
    return any(_holds(judge, chat, tools) for chat in chats for tools in (None, [_TOOL]))


def _holds(judge: Judge, chat: Sequence[Message], tools: Sequence[Message] | None) -> bool:
    try:
        return judge(Request(None, 1, chat, tools=tools))
    except Exception:  # a template may raise anything: it does not take such a chat
        return False


def _call(name: str) -> Message:
    return {"id": name, "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}


def wants_system_first(sources: Iterable[str]) -> bool:
    """Whether one of the templates refuses a system message that is not the first.

    vLLM's own test, in its bare environment: a template that needs what transformers adds to it counts as refusing.
    """
    says = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    for source in sources:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        try:
            environment.from_string(source).render(messages=says, add_generation_prompt=False)
        except Exception:  # a template may raise anything; where it is no TemplateError, vLLM does not even start
            return True
    return False


def can_stop_thinking(render: Render) -> bool:
    """Whether the effort "none" makes a prompt that no other effort makes."""

    def hi(effort: str) -> str | None:
        kwargs = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        return render(Request(None, 0, [{"role": "user", "content": "Hi"}], template_kwargs=kwargs))

    stopped = hi("none")
    return stopped is not None and all(hi(effort) != stopped for effort in _EFFORTS)
