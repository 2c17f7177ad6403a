"""Time to turn an agent's 400 KB request into prompt-block keys: `python -m bench.prompt`.

One session as agents send them: 190 messages, calls and results of tools, 24 tools; once in ASCII and once with some
letters beyond it. Each figure is the best of many runs, because the machine is shared.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from extproc import blocks, openai
from extproc.prompt import PlainRenderer, Renderer
from extproc.vocabulary import Vocabulary

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
        request = openai.parse(PATH, body)
        prompt = renderer.render(request)
        times = (
            best(partial(openai.parse, PATH, body)),
            best(partial(renderer.render, request)),
            best(partial(blocks.extend, prompt.data, root)),
        )
        row = "".join(f"{each:8.2f}" for each in (*times, sum(times)))
        print(f"{name:<28}{len(body):>9}{row}{best(partial(plain.render, request)):14.2f}")
    rng = random.Random(1)
    ids = [rng.randrange(len(vocabulary)) for _ in range(100_000)]
    print(f"\ndetokenise: {len(ids) / best(partial(vocabulary.decode, ids)) / 1e3:.1f} million tokens/s")


if __name__ == "__main__":
    main()
