"""What bodies cost to read, beside what `requests/cost.py` estimates: what is dear must be estimated as dear.

    python -m bench.reading [--megabytes 1]

One row a body: its size, the CPU time of parsing, rendering and hashing it, the estimate, and estimate / measured. An
estimate below 1 times what was measured means that such a body may be read on the event loop although it is dear.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from extproc.prompts.renderer import Renderer
from extproc.requests.cost import decoding_us
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask, read
from loadgen.engine.options import MODEL_DIR

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m bench.reading", description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=1.0, metavar="N", help="of each body (%(default)s)")
    size = round(parser.parse_args().megabytes * 1024 * 1024)
    pool = Pool("bench", Renderer.load(MODEL_DIR))
    read(pool, {}, Ask(CHAT, _chat("é")))  # the first one builds what all share
    print(f"{'body':28} {'size':>8} {'measured':>10} {'estimate':>10} {'ratio':>6}")
    for name, (path, make) in CASES.items():
        body = make(size)
        started = time.process_time()
        read(pool, {}, Ask(path, body))
        took = time.process_time() - started
        estimate = decoding_us(body) / 1e6
        print(
            f"{name:28} {len(body) / 1e6:5.1f} MB {took * 1e3:7.1f} ms {estimate * 1e3:7.1f} ms {estimate / took:6.1f}"
        )


def _chat(text: str) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}]}, ensure_ascii=False).encode()


def _filled(piece: str) -> Callable[[int], bytes]:
    return lambda size: _chat(piece * (size // len(piece.encode())))


def _items(before: bytes, item: bytes, after: bytes) -> Callable[[int], bytes]:
    return lambda size: before + b",".join([item] * (size // (len(item) + 1))) + after


def _agent(size: int) -> bytes:
    """What agents send: code and tools' output in a few kilobytes a message."""
    text = (ROOT / "extproc" / "routing" / "router.py").read_text()[:4000]
    said = [{"role": role, "content": text} for role in ("user", "assistant")] * (size // 8600 + 1)
    return json.dumps({"messages": [*said, {"role": "user", "content": "go on"}]}).encode()


_HEAD, _TAIL = b'{"messages":[{"role":"user","content":"a"}],', b"}"
CASES: Mapping[str, tuple[str, Callable[[int], bytes]]] = {
    "an agent's session": (CHAT, _agent),
    "one ASCII text": (CHAT, _filled("x")),
    "escaped letters": (CHAT, lambda n: b'{"messages":[{"role":"user","content":"' + b"\\u00e9" * (n // 6) + b'"}]}'),
    "two-byte letters": (CHAT, _filled("é")),
    "CJK extension B": (CHAT, _filled("\U00020000")),
    "runs of 31 combining marks": (CHAT, _filled("a" + "\u0301\u0316" * 15 + "\u0301")),
    "one run of combining marks": (CHAT, lambda n: _chat("a" + "\u0301\u0316" * (n // 4))),
    "special tokens' look-alikes": (CHAT, _filled("<|im_start|>")),
    "tiny messages": (CHAT, _items(b'{"messages":[', b'{"role":"user","content":"a"}', b"]}")),
    "tiny turns": (
        CHAT,
        _items(b'{"messages":[', b'{"role":"user","content":"a"},{"role":"assistant","content":"b"}', b"]}"),
    ),
    "text parts": (
        CHAT,
        _items(b'{"messages":[{"role":"user","content":[', b'{"type":"text","text":"a"}', b"]}]}"),
    ),
    "tools": (
        CHAT,
        _items(_HEAD + b'"tools":[', b'{"type":"function","function":{"name":"f","parameters":{}}}', b"]" + _TAIL),
    ),
    "empty lists, unread": (CHAT, _items(_HEAD + b'"x":[', b"[]", b"]" + _TAIL)),
    "empty objects, unread": (CHAT, _items(_HEAD + b'"x":[', b"{}", b"]" + _TAIL)),
    "token ids of one digit": (COMPLETIONS, _items(b'{"prompt":[', b"1", b"]}")),
    "prompts of one id": (COMPLETIONS, _items(b'{"prompt":[', b"[1]", b"]}")),
    "input items": (RESPONSES, _items(b'{"input":[', b'{"role":"user","content":"a"}', b"]}")),
    "calls in one turn": (
        RESPONSES,
        _items(b'{"input":[', b'{"type":"function_call","name":"f","arguments":"{}"}', b"]}"),
    ),
    "content blocks": (
        MESSAGES,
        _items(b'{"messages":[{"role":"user","content":[', b'{"type":"text","text":"a"}', b"]}]}"),
    ),
    "no JSON": (CHAT, lambda n: b"x" * n),
}

if __name__ == "__main__":
    main()
