"""/v1/responses: OpenAI's items become a chat, and answers are items. What is stored is `http`'s business."""

from __future__ import annotations

from collections.abc import Iterable

from loadgen.engine.api_parts import Api, Body, Event, Stream, copied, listed
from loadgen.engine.completion import Completion, Sample
from loadgen.json_types import Json


def _chat(body: Body) -> dict[str, Json]:
    messages: list[Json] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body.get("input")
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else listed(body, "input"):
        last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        kind = item.get("type", "message")
        if kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            if last is None:
                messages.append(last := {"role": "assistant", "content": None})
            last.setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
        elif kind == "message":
            messages.append({"role": item["role"], "content": item["content"]})
    tools = [{"type": "function", "function": tool} for tool in body.get("tools") or ()]
    chat: dict[str, Json] = {"messages": messages, **({"tools": tools} if tools else {})}
    if (choice := body.get("tool_choice")) is not None:
        named = isinstance(choice, dict)
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}} if named else choice
    return chat | copied(body, max_tokens="max_output_tokens", model="model", stream="stream", cache_salt="cache_salt")


def _answer(completion: Completion, asked: Body) -> dict[str, Json]:
    return _response(completion, asked, _status(completion)) | {
        "output": [_item(completion, "completed")],
        "usage": _usage(completion),
    }


def _response(completion: Completion, asked: Body, status: str) -> dict[str, Json]:
    """What a response repeats of its request, as vLLM fills in what is missing; without output and usage."""
    cut = status == "incomplete"
    return {
        "id": completion.id,
        "created_at": completion.created_s,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": asked.get("instructions"),
        "metadata": asked.get("metadata"),
        "model": completion.model,
        "object": "response",
        "output": [],
        "parallel_tool_calls": True,
        "temperature": asked.get("temperature", 1.0),
        "tool_choice": asked.get("tool_choice") or "auto",
        "tools": asked.get("tools") or [],
        "top_p": asked.get("top_p", 1.0),
        "background": False,
        "max_output_tokens": asked.get("max_output_tokens"),
        "max_tool_calls": None,
        "previous_response_id": asked.get("previous_response_id"),
        "prompt": None,
        "reasoning": asked.get("reasoning"),
        "service_tier": "auto",
        "status": status,
        "text": asked.get("text"),
        "top_logprobs": None,
        "truncation": "disabled",
        "usage": None,
        "user": asked.get("user"),
    }


def _status(completion: Completion) -> str:
    return "incomplete" if completion.reply.finish == "length" else "completed"


def _item(completion: Completion, status: str) -> Event:
    """The one item of an answer, with all that is in it."""
    call = completion.reply.call
    number = completion.id.removeprefix("resp_")
    if call:
        named = {"type": "function_call", "id": f"fc_{number}", "call_id": call.id, "name": call.name}
        return named | {"arguments": call.arguments, "status": status}
    content: list[Json] = [
        {"annotations": [], "text": completion.sample.text(), "type": "output_text", "logprobs": None}
    ]
    message: Event = {"id": f"msg_{number}", "content": content, "role": "assistant", "status": status}
    return message | {"type": "message", "phase": None}


def _usage(completion: Completion) -> dict[str, Json]:
    request = completion.request
    return {
        "input_tokens": request.prompt,
        "input_tokens_details": {
            "cached_tokens": completion.hit,
            "cache_write_tokens": completion.created,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": request.reply,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": request.prompt + request.reply,
    }


class _Events(Stream):
    """A response's life: created, its one item opened, filled and closed, completed; all events numbered from 0."""

    _number = 0

    def opening(self) -> list[Event]:
        begun = _response(self.completion, self.asked, "in_progress")
        return self._numbered({"type": f"response.{what}", "response": begun} for what in ("created", "in_progress"))

    def advance(self, sample: Sample, before: int, sampled: int) -> list[Event]:
        item = _item(self.completion, "in_progress")
        where = {"output_index": 0, "item_id": item["id"]}
        ended = sampled == sample.request.reply
        if sample.reply.call:
            return self._called(item, where) if ended else []
        events: list[Event] = []
        part = where | {"content_index": 0}
        if not before:
            events += [
                {"type": "response.output_item.added", "output_index": 0, "item": item | {"content": []}},
                {"type": "response.content_part.added", **part, "part": _part("")},
            ]
        if text := sample.text(before, sampled):
            events.append({"type": "response.output_text.delta", **part, "delta": text, "logprobs": []})
        if ended:
            whole = sample.text()
            events += [
                {"type": "response.output_text.done", **part, "text": whole, "logprobs": []},
                {"type": "response.content_part.done", **part, "part": _part(whole)},
                {"type": "response.output_item.done", "output_index": 0, "item": item | {"status": "completed"}},
            ]
        return self._numbered(events)

    def closing(self) -> list[Event]:
        return self._numbered([{"type": "response.completed", "response": _answer(self.completion, self.asked)}])

    def _called(self, item: Event, where: Event) -> list[Event]:
        written = item["arguments"]
        kind = "response.function_call_arguments"
        return self._numbered(
            [
                {"type": "response.output_item.added", "output_index": 0, "item": item | {"arguments": ""}},
                {"type": f"{kind}.delta", **where, "delta": written},
                {"type": f"{kind}.done", **where, "name": item["name"], "arguments": written},
                {"type": "response.output_item.done", "output_index": 0, "item": item | {"status": "completed"}},
            ]
        )

    def _numbered(self, events: Iterable[Event]) -> list[Event]:
        numbered = [event | {"sequence_number": self._number + place} for place, event in enumerate(events)]
        self._number += len(numbered)
        return numbered


def _part(text: str) -> Json:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": []}


API = Api(prefix="resp_", chat=_chat, answer=_answer, stream=_Events, named=True, stores=True)
