"""Time to turn an agent's 400 KB request into prompt-block keys: `python -m bench.prompt`.

One session as agents send them: 190 messages, calls and results of tools, 24 tools; once in ASCII and once with some
letters beyond it. The same session then comes by every other API. Each figure is the best of many runs, because the
machine is shared.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from extproc.base import blocks
from extproc.prompts.renderer import PlainRenderer, Renderer
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from extproc.requests import apis

MODEL = Path(__file__).parent.parent / "tests" / "fixtures" / "model"
PATH = "/v1/chat/completions"
RUNS = 50
WORDS = [
    *(
        "the",
        "file",
        "router",
        "index",
        "block",
        "cache",
        "value",
        "test",
        "error",
        "line",
        "return",
        "import",
        "class",
    ),
    *(
        "def",
        "if",
        "else:",
        "while",
        "<div>",
        "{x}",
        "self.assertEqual(",
        "==",
        "0x1f",
        "// TODO:",
        "\n    ",
        "\t",
        "--",
    ),
]


def chat(size: int, messages: int, tools: int, accent: str = "") -> bytes:
    """The body of a request of about `size` bytes."""
    rng = random.Random(1)

    def text(length: int) -> str:
        words: list[str] = [accent]
        while length > 0:
            words.append(rng.choice(WORDS))
            length -= len(words[-1]) + 1
        return " ".join(words)

    properties = {f"p{i}": {"type": "string", "description": text(80)} for i in range(6)}
    described = {"description": text(300), "parameters": {"type": "object", "properties": properties}}
    conversation: list[dict[str, Any]] = [{"role": "system", "content": text(min(8000, size // 4))}]
    share = (size - min(8000, size // 4) - tools * 1200) // (messages // 2)
    while len(conversation) < messages - 1:
        call = {"name": "read_file", "arguments": msgspec.json.encode({"path": text(60), "lines": [1, 200]}).decode()}
        number = f"call_{len(conversation)}"
        conversation += [
            {
                "role": "assistant",
                "content": text(120),
                "tool_calls": [{"id": number, "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": number, "content": text(share - 500)},
        ]
    conversation.append({"role": "user", "content": text(400)})
    functions = [{"type": "function", "function": {"name": f"tool_{i}", **described}} for i in range(tools)]
    return msgspec.json.encode({"model": "m", "stream": True, "messages": conversation, "tools": functions})


def messages(body: dict[str, Any]) -> dict[str, Any]:
    """A chat as Anthropic's messages."""
    said: list[dict[str, Any]] = []
    for message in body["messages"][1:]:
        if message["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            said.append({"role": "user", "content": [block]})
            continue
        blocks: list[dict[str, Any]] = [{"type": "text", "text": message["content"]}]
        for call in message.get("tool_calls", ()):
            given = msgspec.json.decode(call["function"]["arguments"])
            blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": given})
        said.append({"role": message["role"], "content": blocks})
    functions = (tool["function"] for tool in body.get("tools", ()))
    tools = [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in functions]
    return {"model": "m", "max_tokens": 1, "system": body["messages"][0]["content"], "messages": said, "tools": tools}


def responses(body: dict[str, Any]) -> dict[str, Any]:
    """A chat as items of OpenAI's responses."""
    items: list[dict[str, Any]] = []
    for message in body["messages"][1:]:
        if message["role"] == "tool":
            output = {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
            items.append(output)
            continue
        kind = "output_text" if message["role"] == "assistant" else "input_text"
        part = {"type": kind, "text": message["content"]}
        items.append({"type": "message", "role": message["role"], "content": [part]})
        calls = message.get("tool_calls", ())
        items += [{"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls]
    tools = [{"type": "function", **tool["function"]} for tool in body.get("tools", ())]
    return {"model": "m", "instructions": body["messages"][0]["content"], "input": items, "tools": tools}


def by_api(body: bytes, rendered: str) -> dict[str, tuple[str, bytes]]:
    """Path and body of the same session by every API."""
    request = msgspec.json.decode(body)
    ids = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode(rendered, add_special_tokens=False).ids
    ids = ids[: len(ids) * len(body) // len(msgspec.json.encode(ids))]  # a body as long as the others
    bodies: dict[str, tuple[str, Any]] = {
        "/v1/chat/completions": (PATH, request),
        "/v1/messages": ("/v1/messages", messages(request)),
        "/v1/responses": ("/v1/responses", responses(request)),
        "/v1/completions, text": ("/v1/completions", {"prompt": rendered}),
        "/v1/completions, token ids": ("/v1/completions", {"prompt": ids}),
    }
    return {name: (path, msgspec.json.encode(sent)) for name, (path, sent) in bodies.items()}


def best(work: Callable[[], object]) -> float:
    """Milliseconds of the fastest of `RUNS` runs."""
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def main() -> None:
    """Print one line for each kind of request."""
    renderer, plain, vocabulary = Renderer.load(MODEL), PlainRenderer(), Vocabulary.load(MODEL)
    root = blocks.root("bench")
    print(f"{'request':<28}{'bytes':>9}{'parse':>8}{'render':>8}{'chain':>8}{'sum ms':>8}{'plain render':>14}")
    for name, size, messages, tools, accent in (
        ("1 KB", 1_000, 2, 0, ""),
        ("40 KB, 20 messages", 40_000, 20, 8, ""),
        ("400 KB, 190 messages", 400_000, 190, 24, ""),
        ("400 KB, some not ASCII", 400_000, 190, 24, "naïve — 数据 🙂"),
        ("4 MB, 1900 messages", 4_000_000, 1900, 24, ""),
    ):
        body = chat(size, messages, tools, accent)
        request = apis.parse(PATH, body)
        prompt = renderer.render(request)
        times = (
            best(partial(apis.parse, PATH, body)),
            best(partial(renderer.render, request)),
            best(partial(blocks.extend, prompt.data, root)),
        )
        row = "".join(f"{each:8.2f}" for each in (*times, sum(times)))
        print(f"{name:<28}{len(body):>9}{row}{best(partial(plain.render, request)):14.2f}")
    body = chat(400_000, 190, 24)
    rendered = renderer.render(apis.parse(PATH, body)).data
    head = f"{'bytes':>9}{'parse':>8}{'render':>8}{'chain':>8}{'sum ms':>8}{'of chat':>9}"
    print(f"\n{'the same 400 KB by each API':<28}{head}")
    chat_ms = 0.0
    for name, (path, sent) in by_api(body, rendered.decode()).items():
        request = apis.parse(path, sent)
        data = renderer.render(request).data
        assert rendered.startswith(data), name
        times = (
            best(partial(apis.parse, path, sent)),
            best(partial(renderer.render, request)),
            best(partial(blocks.extend, data, root)),
        )
        chat_ms = chat_ms or sum(times)
        row = "".join(f"{each:8.2f}" for each in (*times, sum(times)))
        print(f"{name:<28}{len(sent):>9}{row}{sum(times) / chat_ms:9.2f}")
    rng = random.Random(1)
    ids = [rng.randrange(len(vocabulary)) for _ in range(100_000)]
    print(f"\ndetokenise: {len(ids) / best(partial(vocabulary.decode, ids)) / 1e3:.1f} million tokens/s")


if __name__ == "__main__":
    main()
