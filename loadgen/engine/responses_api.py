"""/v1/responses: OpenAI's items become a chat, and answers are items. What is stored is `other_apis`' business."""

from __future__ import annotations

from loadgen.engine.api_parts import Api, Body, listed, text_of
from loadgen.engine.completion import Completion
from loadgen.json_types import Json


def _from_responses(body: Body) -> dict[str, Json]:
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
    if "max_output_tokens" in body:
        chat["max_tokens"] = body["max_output_tokens"]
    return chat | {name: body[name] for name in ("model", "stream", "cache_salt") if name in body}


def _response(completion: Completion, status: str = "completed") -> dict[str, Json]:
    content = [{"type": "output_text", "text": text_of(completion), "annotations": []}]
    message = {"type": "message", "id": "msg_0", "role": "assistant", "status": "completed", "content": content}
    request = completion.request
    details = {"cached_tokens": request.hit, "cache_write_tokens": completion.cacheable - request.hit}
    usage = {"input_tokens": request.prompt, "input_tokens_details": details, "output_tokens": request.reply}
    return {
        "id": completion.id,
        "created_at": completion.created,
        "model": completion.model,
        "object": "response",
        "output": [message],
        "status": status,
        "usage": usage,
    }


def _response_first(completion: Completion) -> list[dict[str, Json]]:
    begun = _response(completion, "in_progress") | {"output": [], "usage": None}
    return [{"type": "response.created", "response": begun}]


API = Api(
    "resp_",
    _from_responses,
    _response,
    _response_first,
    lambda _, text: {"type": "response.output_text.delta", "delta": text},
    lambda completion: [{"type": "response.completed", "response": _response(completion)}],
)
