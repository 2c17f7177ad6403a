"""A simulated engine's APIs against what vLLM tokenised and said: they count as an independent reading of its rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.engine.apis import APIS, CHAT, MESSAGES, RESPONSES, read
from loadgen.engine.chat_api import ChatApi, Served
from loadgen.engine.completion import Completion
from loadgen.engine.errors import Refused
from tests.support.recordings import MODEL, lines


@pytest.fixture(scope="module")
def api() -> ChatApi:
    return ChatApi(MODEL, Served(["tiny"], [], 16_384, 32))


@pytest.mark.parametrize(
    ("path", "recording"),
    [
        ("/v1/completions", "0.32.0/E_completions"),
        ("/v1/messages", "0.32.0/G_messages_responses"),
        ("/v1/responses", "0.32.0/G_messages_responses"),
    ],
)
def test_prompts_are_those_of_vllm(api: ChatApi, path: str, recording: str) -> None:
    """Every recorded request of one prompt has the token ids that vLLM gave it."""
    seen = 0
    for line in lines(recording):
        ids = line.get("prompt_token_ids")
        if line["kind"] == "request" and line["path"] == path and ids and not isinstance(ids[0], list):
            assert api.prompt(read(path, line["body"])).tolist() == ids, line.get("note")
            seen += 1
    assert seen >= 4


@pytest.mark.parametrize("path", list(APIS))
@pytest.mark.parametrize("body", [{}, {"messages": 5, "input": 5, "prompt": 5}, {"messages": [5], "input": [5]}])
def test_what_is_no_request_is_refused(api: ChatApi, path: str, body: dict[str, object]) -> None:
    """As vLLM does: 400."""
    with pytest.raises(Refused):
        api.prompt(read(path, body))


TOOL = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
CHATS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "go"},
    CHAT: {
        "messages": [{"role": "user", "content": "go"}],
        "tools": [{"type": "function", "function": {"name": "look", "parameters": TOOL}}],
    },
    MESSAGES: {
        "messages": [{"role": "user", "content": "go"}],
        "max_tokens": 200,
        "tools": [{"name": "look", "input_schema": TOOL}],
    },
    RESPONSES: {"input": "go", "tools": [{"type": "function", "name": "look", "parameters": TOOL}]},
}
NAMED: dict[str, Any] = {
    CHAT: {"type": "function", "function": {"name": "look"}},
    MESSAGES: {"type": "tool", "name": "look"},
    RESPONSES: {"type": "function", "name": "look"},
}


def made(api: ChatApi, path: str, **more: Any) -> tuple[Completion, dict[str, Any]]:
    body = CHATS[path] | more
    return api.start(read(path, body), id=f"{APIS[path].prefix}1", created=7), body


def events(path: str, completion: Completion, body: dict[str, Any], step: int = 3) -> list[dict[str, Any]]:
    """All events of a stream that comes in pieces of `step` tokens."""
    stream = APIS[path].stream(completion, body)
    told = list(stream.opening())
    for sample in completion.samples:
        count = sample.request.reply
        for before in range(0, count, step):
            told += stream.advance(sample, before, min(before + step, count))
    return told + stream.closing()


@pytest.mark.parametrize("path", NAMED)
@pytest.mark.parametrize("choice", ["required", "named", "none"])
def test_a_tool_is_called_as_the_client_chose(api: ChatApi, path: str, choice: str) -> None:
    """In each API's own words: any or required, one by its name, none."""
    words = {"required": {"type": "any"}, "none": {"type": "none"}} if path == MESSAGES else {}
    given = NAMED[path] if choice == "named" else words.get(choice, choice)
    for number in range(8):
        completion, _ = made(api, path, tool_choice=given, cache_salt=str(number))
        assert (completion.reply.call is not None) == (choice != "none")


@pytest.mark.parametrize("path", NAMED)
def test_a_choice_without_tools_is_refused(api: ChatApi, path: str) -> None:
    """As vLLM does: 400, whether the tools are missing or the one that is named."""
    with pytest.raises(Refused, match="tools"):
        made(api, path, tools=None, tool_choice={"type": "any"} if path == MESSAGES else "required")
    other = [{"name": "b", "input_schema": TOOL}] if path == MESSAGES else [{"type": "function", "name": "b"}]
    if path != CHAT:
        with pytest.raises(Refused):
            made(api, path, tools=other, tool_choice=NAMED[path])


def test_a_response_is_told_event_by_event(api: ChatApi) -> None:
    """Numbered from 0, each part opened before it is filled and closed after, and the last event has the whole."""
    completion, body = made(api, RESPONSES, tools=None, max_output_tokens=8)
    told = events(RESPONSES, completion, body)
    kinds = [event["type"].removeprefix("response.") for event in told]
    deltas = ["output_text.delta"] * kinds.count("output_text.delta")
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *deltas,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    text = "".join(event["delta"] for event in told if "delta" in event)
    assert len(deltas) > 1
    whole = told[-1]["response"]
    assert whole == APIS[RESPONSES].answer(completion, body)
    assert text == whole["output"][0]["content"][0]["text"] == told[-4]["text"]
    parts = [event for event in told if "item_id" in event]
    assert {(event["item_id"], event["output_index"], event["content_index"]) for event in parts} == {("msg_1", 0, 0)}
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_a_response_that_calls_is_an_item_of_its_own(api: ChatApi) -> None:
    """The call's arguments come as deltas, and its item has no content."""
    completion, body = made(api, RESPONSES, tool_choice="required")
    told = events(RESPONSES, completion, body)
    assert [event["type"].removeprefix("response.") for event in told] == [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    (item,) = told[-1]["response"]["output"]
    assert (item["type"], item["name"], item["status"]) == ("function_call", "look", "completed")
    assert json.loads(told[3]["delta"]).keys() == {"path"}
    assert told[3]["delta"] == item["arguments"]


def test_usage_is_as_recorded(api: ChatApi) -> None:
    """The fields of usage are those that vLLM sent, in each API, at the start of a stream as at its end."""
    recorded = {}
    for name in ("A_agents", "E_completions", "G_messages_responses"):
        for line in lines(f"0.32.0/{name}"):
            if line["kind"] == "request" and line.get("response_usage"):
                recorded[line["path"], bool(line["body"].get("stream"))] = line["response_usage"]
    assert len(recorded) == 8
    for (path, stream), usage in recorded.items():
        completion, body = made(api, path, stream_options={"include_usage": True})
        last = events(path, completion, body)
        told = [*last[-2:], last[-1].get("response", {})] if stream else [APIS[path].answer(completion, body)]
        (found,) = (one["usage"] for one in told if one.get("usage"))
        assert shape(found) == shape(usage), (path, stream)
    completion, body = made(api, MESSAGES)
    start = events(MESSAGES, completion, body)[0]["message"]["usage"]
    assert start == {"input_tokens": completion.request.prompt, "output_tokens": 0}


def shape(value: Any) -> Any:
    """What there is in a JSON value: names, and which are null."""
    return {name: shape(inner) for name, inner in value.items()} if isinstance(value, dict) else value is None


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "none"}])
def test_a_message_is_told_block_by_block(api: ChatApi, choice: dict[str, str]) -> None:
    """Its one block, text or call, is opened before it is filled and closed after; the reason comes with the usage."""
    completion, body = made(api, MESSAGES, tool_choice=choice)
    told = events(MESSAGES, completion, body)
    kinds = [event["type"] for event in told]
    deltas = [event["delta"] for event in told if event["type"] == "content_block_delta"]
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * len(deltas),
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    whole = APIS[MESSAGES].answer(completion, body)
    (block,) = whole["content"]
    if choice["type"] == "any":
        assert json.loads("".join(delta["partial_json"] for delta in deltas)) == block["input"]
        assert told[1]["content_block"] == block | {"input": {}}
    else:
        assert "".join(delta["text"] for delta in deltas) == block["text"]
    assert told[-2]["delta"]["stop_reason"] == whole["stop_reason"]
    assert told[-2]["usage"] == whole["usage"]


def test_several_answers_to_one_prompt(api: ChatApi) -> None:
    """Each has a place and words of its own, usage counts the prompt once and the replies all; a choice that greedy
    sampling leaves no room for is refused."""
    completion, body = made(api, CHAT, n=3, stream_options={"include_usage": True}, max_tokens=200, tools=None)
    answer = APIS[CHAT].answer(completion, body)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    replies = [sample.request.reply for sample in completion.samples]
    assert answer["usage"]["completion_tokens"] == sum(replies)
    assert answer["usage"]["prompt_tokens"] == completion.request.prompt
    told = events(CHAT, completion, body)
    for index, text in enumerate(texts):
        own = [choice for event in told for choice in event["choices"] if choice["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in own) == text
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["stop"]
    assert told[-1]["usage"]["completion_tokens"] == sum(replies)
    for wrong in ({"n": 0}, {"n": 65}, {"n": 2, "temperature": 0}):
        with pytest.raises(Refused):
            made(api, CHAT, **wrong)


def test_attribution_that_differs_at_every_request_is_left_out(api: ChatApi) -> None:
    """Claude Code's billing header is a block of the system prompt that vLLM drops, or no prefix would ever match."""
    system = [{"type": "text", "text": "x-anthropic-billing-header: cch=1"}, {"type": "text", "text": "You help."}]
    billed, plain = (read(MESSAGES, CHATS[MESSAGES] | {"system": given}) for given in (system, "You help."))
    assert billed == plain
