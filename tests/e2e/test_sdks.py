"""OpenAI's and Anthropic's own SDKs as clients, through a real Envoy: agents that are written with them stay."""

from __future__ import annotations

import base64
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from anthropic import AsyncAnthropic, NotFoundError
from openai import AsyncOpenAI, BadRequestError

from loadgen.stack.stack import Stack
from tests.support.agents import WORD, complaints, loads, until

LONG = WORD * 40
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
CHAT_TOOL = {"type": "function", "function": {"name": "read", "description": "Read a file.", "parameters": SCHEMA}}
ITEM_TOOL = {"type": "function", "name": "read", "description": "Read a file.", "parameters": SCHEMA, "strict": False}
MESSAGE_TOOL = {"name": "read", "description": "Read a file.", "input_schema": SCHEMA}
PIXEL = base64.b64encode(b"\x89PNG not looked at").decode()
URL = f"data:image/png;base64,{PIXEL}"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(engines=3) as running:
        yield running


@pytest.fixture
async def openai(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def anthropic(stack: Stack) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=stack.url, api_key="none", max_retries=0) as client:
        yield client


class Session:
    """Follows where the requests of one session go, by a word in their paths, which every SDK lets one add."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._tags: list[str] = []
        self.decisions: list[Mapping[str, Any]] = []

    def tagged(self) -> dict[str, Any]:
        """What makes the next request known."""
        self._tags.append(uuid.uuid4().hex)
        return {"extra_query": {"request": self._tags[-1]}}

    async def stayed(self, first: str = "first_turn", later: str = "stick") -> None:
        """Each request is decided for its reason, and all went to the first one's instance."""

        def logged() -> bool:
            entries = [
                entry for entry in self._stack.access_log() if entry["path"].partition("request=")[2] in self._tags
            ]
            if len(entries) < len(self._tags):
                return False
            by_tag = {entry["path"].partition("request=")[2]: entry for entry in entries}
            assert [by_tag[tag]["status"] for tag in self._tags] == [200] * len(self._tags)
            self.decisions = [by_tag[tag]["smetric"] for tag in self._tags]
            return True

        await until(logged)
        assert [one["reason"] for one in self.decisions] == [first] + [later] * (len(self._tags) - 1)
        assert len({one["instance"] for one in self.decisions}) == 1


async def test_a_chat_with_tools_over_turns(stack: Stack, openai: AsyncOpenAI) -> None:
    """Streamed and not, with calls that the SDK puts together and their results: every follow-up stays."""
    session = Session(stack)
    messages: list[Any] = [{"role": "system", "content": LONG}, {"role": "user", "content": f"read {uuid.uuid4()}"}]
    called = 0
    for turn in range(6):
        options = {"messages": messages, "tools": [CHAT_TOOL], "model": "tiny", "max_tokens": 200, "temperature": 0}
        if turn == 2:
            options["tool_choice"] = "required"
        if turn == 3:
            options["tool_choice"] = {"type": "function", "function": {"name": "read"}}
        if turn % 2:
            async with openai.chat.completions.stream(**options, **session.tagged()) as stream:
                async for _ in stream:
                    pass
                reply = (await stream.get_final_completion()).choices[0].message
        else:
            reply = (await openai.chat.completions.create(**options, **session.tagged())).choices[0].message
        calls = reply.tool_calls or []
        called += len(calls)
        assert calls or turn not in (2, 3)
        messages.append({"role": "assistant", "content": reply.content})
        if calls:
            assert json.loads(calls[0].function.arguments).keys() == {"path"}
            messages[-1]["tool_calls"] = [call.model_dump(include={"id", "type", "function"}) for call in calls]
            messages += [{"role": "tool", "tool_call_id": call.id, "content": f"{turn} {WORD * 5}"} for call in calls]
        else:
            messages.append({"role": "user", "content": f"go on {turn} {WORD * 5}"})
    assert called
    await session.stayed()
    assert [one["turn"] for one in session.decisions] == list(range(6))


async def test_several_choices(openai: AsyncOpenAI) -> None:
    """`n` answers to one prompt, streamed and not: as many choices, each whole."""
    options: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": LONG}],
        "n": 3,
        "max_tokens": 20,
    }
    whole = await openai.chat.completions.create(**options)
    texts = {choice.index: choice.message.content for choice in whole.choices}
    assert len(texts) == 3 == len(set(texts.values()))
    streamed: Counter[int] = Counter()
    told = dict.fromkeys(texts, "")
    async for chunk in await openai.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            told[choice.index] += choice.delta.content or ""
            streamed[choice.index] += choice.finish_reason is not None
    assert told == texts
    assert streamed == {0: 1, 1: 1, 2: 1}
    with pytest.raises(BadRequestError):
        await openai.chat.completions.create(**options, temperature=0)


async def test_completions(stack: Stack, openai: AsyncOpenAI) -> None:
    """A framework that renders chats itself and sends their text."""
    session = Session(stack)
    prompt = (
        f"<|im_start|>system\n{LONG}<|im_end|>\n<|im_start|>user\n{uuid.uuid4()}<|im_end|>\n<|im_start|>assistant\n"
    )
    for turn in range(4):
        options: dict[str, Any] = {"model": "tiny", "prompt": prompt, "max_tokens": 20, "temperature": 0}
        if turn % 2:
            text = ""
            async for chunk in await openai.completions.create(**options, stream=True, **session.tagged()):
                text += chunk.choices[0].text
        else:
            text = (await openai.completions.create(**options, **session.tagged())).choices[0].text
        prompt += f"{text}<|im_end|>\n<|im_start|>user\ngo on {turn} {WORD}<|im_end|>\n<|im_start|>assistant\n"
    await session.stayed()


async def test_responses_with_the_whole_history(stack: Stack, openai: AsyncOpenAI) -> None:
    """Items go back as they came, calls with their outputs; `responses.stream()` puts each answer together."""
    session = Session(stack)
    items: list[Any] = [{"role": "user", "content": f"read {uuid.uuid4()}"}]
    kinds: Counter[str] = Counter()
    for turn in range(6):
        options: dict[str, Any] = {"model": "tiny", "instructions": LONG, "input": items, "store": False}
        options |= {"tools": [ITEM_TOOL], "max_output_tokens": 200, "tool_choice": "required" if turn == 1 else "auto"}
        if turn % 2:
            async with openai.responses.stream(**options, **session.tagged()) as stream:
                events = [event async for event in stream]
                answer = await stream.get_final_response()
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert events[-1].type == "response.completed"
        else:
            answer = await openai.responses.create(**options, **session.tagged())
        (item,) = answer.output
        kinds[item.type] += 1
        items.append(item.model_dump(exclude_none=True, exclude={"parsed_arguments"}))
        if item.type == "function_call":
            items.append({"type": "function_call_output", "call_id": item.call_id, "output": f"{turn} {WORD * 5}"})
        else:
            assert answer.output_text
            items.append({"role": "user", "content": f"go on {turn} {WORD * 5}"})
    assert kinds["function_call"]
    await session.stayed()


async def test_responses_by_the_previous_id(stack: Stack, openai: AsyncOpenAI) -> None:
    """What an engine stored is gone on from there, streamed and not, calls included, and can be read again."""
    session = Session(stack)
    given: Any = f"read {uuid.uuid4()} {LONG}"
    previous: dict[str, Any] = {}
    for turn in range(5):
        options: dict[str, Any] = {"model": "tiny", "input": given, "tools": [ITEM_TOOL], "max_output_tokens": 200}
        options |= previous | {"tool_choice": "required" if turn in (1, 2) else "none"}
        if turn % 2:
            async with openai.responses.stream(**options, **session.tagged()) as stream:
                async for _ in stream:
                    pass
                answer = await stream.get_final_response()
        else:
            answer = await openai.responses.create(**options, **session.tagged())
        assert answer.previous_response_id == previous.get("previous_response_id")
        previous = {"previous_response_id": answer.id}
        (item,) = answer.output
        call = item.call_id if item.type == "function_call" else None
        given = [{"type": "function_call_output", "call_id": call, "output": WORD}] if call else f"go on {turn}"
    await session.stayed(later="previous_response")
    again = await openai.responses.retrieve(answer.id)
    assert (again.id, again.output_text, again.status) == (answer.id, answer.output_text, answer.status)


async def test_messages_with_tools_over_turns(stack: Stack, anthropic: AsyncAnthropic) -> None:
    """Blocks go back as they came; streams are put together by the SDK, calls too; counting takes no session along."""
    session = Session(stack)
    messages: list[Any] = [{"role": "user", "content": f"read {uuid.uuid4()}"}]
    reasons: Counter[str | None] = Counter()
    for turn in range(6):
        options: dict[str, Any] = {"model": "tiny", "system": LONG, "messages": messages, "tools": [MESSAGE_TOOL]}
        counted = await anthropic.messages.count_tokens(**options)
        options |= {"max_tokens": 200} | ({"tool_choice": {"type": "any"}} if turn in (1, 2) else {})
        if turn % 2:
            async with anthropic.messages.stream(**options, **session.tagged()) as stream:
                async for _ in stream:
                    pass
                answer = await stream.get_final_message()
        else:
            answer = await anthropic.messages.create(**options, **session.tagged())
        usage = answer.usage
        assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0) + (
            usage.cache_creation_input_tokens or 0
        )
        reasons[answer.stop_reason] += 1
        messages.append(
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]}
        )
        (block,) = answer.content
        if block.type == "tool_use":
            assert set(block.input) == {"path"}
            result = {"type": "tool_result", "tool_use_id": block.id, "content": f"{turn} {WORD * 5}"}
            messages.append({"role": "user", "content": [result]})
        else:
            messages.append({"role": "user", "content": f"go on {turn} {WORD * 5}"})
    assert reasons["tool_use"] >= 2
    await session.stayed()


async def test_errors_are_those_of_the_api(openai: AsyncOpenAI, anthropic: AsyncAnthropic) -> None:
    """Each SDK raises its own error, with the engine's words."""
    with pytest.raises(NotFoundError, match="does not exist"):
        await anthropic.messages.create(model="other", max_tokens=4, messages=[{"role": "user", "content": "hello"}])
    with pytest.raises(BadRequestError, match="tools"):
        await openai.responses.create(model="tiny", input="hello", tool_choice="required")


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_images(stack: Stack, openai: AsyncOpenAI, anthropic: AsyncAnthropic, api: str) -> None:
    """A screenshot in the first message: every API takes it, and the session stays where it is cached."""
    session = Session(stack)
    ask = f"what is on this page? {uuid.uuid4()}"
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": ask}, _image(api)]}]
    for turn in range(5):
        if api == "chat":
            system = {"role": "system", "content": LONG}
            answered = await openai.chat.completions.create(
                model="tiny", messages=[system, *messages], max_tokens=20, **session.tagged()
            )
            said = answered.choices[0].message.content
        elif api == "responses":
            items = [_item(message) for message in messages]
            made = await openai.responses.create(
                model="tiny", instructions=LONG, input=items, max_output_tokens=20, store=False, **session.tagged()
            )
            said = made.output_text
        else:
            told = await anthropic.messages.create(
                model="tiny", system=LONG, messages=messages, max_tokens=20, **session.tagged()
            )
            said = told.content[0].text
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"click {turn} {WORD * 5}"}]
    await session.stayed()


def _image(api: str) -> dict[str, Any]:
    if api == "messages":
        return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    return {"type": "image_url", "image_url": {"url": URL}}


def _item(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as an item of a response's input."""
    if isinstance(message["content"], str):
        return dict(message)
    text, _ = message["content"]
    parts = [{"type": "input_text", "text": text["text"]}, {"type": "input_image", "detail": "auto", "image_url": URL}]
    return {"role": message["role"], "content": parts}


async def test_nobody_complains(stack: Stack) -> None:
    """After all of the above: every load is given back, and nothing is in the log."""
    await until(lambda: not any(loads(stack)))
    assert not complaints(stack)
