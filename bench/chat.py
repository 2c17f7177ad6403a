"""The request that the benchmarks measure: an agent's chat of a given size, as its client would send it."""

from __future__ import annotations

import json
import random

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} inside the repository that is checked out. " * 6,
            "parameters": {
                "type": "object",
                "properties": {
                    key: {"type": "string", "description": f"The {key}."} for key in ("path", "text", "mode")
                },
                "required": ["path"],
            },
        },
    }
    for name in ("read_file", "write_file", "run_command", "search", "list_directory", "apply_patch")
]


def body(size: int, messages: int, seed: int = 0) -> bytes:
    """About `size` bytes of JSON: a system prompt, then user, assistant and tool messages in turn, and tools."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz_", k=rng.randint(2, 11))) for _ in range(2000)]

    def text(length: int) -> str:
        parts: list[str] = []
        while length > 0:
            parts.append(rng.choice(words) + rng.choice(("", "", "", "\n", '"', ",")))
            length -= len(parts[-1]) + 1
        return " ".join(parts)

    share = max(1, int(size * 0.9) // messages)
    chat: list[dict[str, object]] = [{"role": "system", "content": text(share)}]
    while len(chat) < messages - 1:
        number = len(chat)
        call = {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "read_file", "arguments": json.dumps({"path": f"src/module_{number}.py"})},
        }
        chat += [
            {"role": "assistant", "content": text(share // 4), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": text(share * 7 // 4)},
        ]
    chat.append({"role": "user", "content": text(share)})
    return json.dumps({"model": "tiny", "messages": chat, "tools": TOOLS, "stream": True}).encode()
