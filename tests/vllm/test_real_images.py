"""Sessions with images against real vLLM: they stay, and the engine finds its cache. Run by `make test-vllm`.

A tiny LLaVA with random weights (make_vision_model.py) on two real instances, a real Envoy, a real Redis.
"""

from __future__ import annotations

import asyncio
import base64
import struct
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import aiohttp
import pytest

from tests.vllm.test_real_vllm import VENV, Real, exchange

WORDS = "the quick brown fox jumps over the lazy dog and runs on. "
SYSTEM = {"role": "system", "content": f"You drive a browser and are careful. {WORDS * 30}"}


def _sees() -> bool:
    """Whether vision models can be imported there."""
    return (
        VENV is not None
        and not subprocess.run([f"{VENV}/bin/python", "-c", "import torchvision"], check=False).returncode
    )


pytestmark = [
    pytest.mark.skipif(VENV is None, reason="needs a real vLLM: make test-vllm"),
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    if not _sees():
        pytest.skip("needs torchvision beside vLLM: run tests/vllm/setup.sh on an empty directory")
    with ExitStack() as stack:
        options = ["--load-format", "dummy", "--skip-mm-profiling"]
        running = Real(tmp_path_factory.mktemp("vision"), "make_vision_model.py", options)
        running.start(stack)
        yield running


def png(seed: int) -> dict[str, Any]:
    """A picture of 9 by 7 pixels, unlike those of other seeds."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes((seed * 37 + 11 * row * n) % 256 for n in range(27)) for row in range(7))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 7, 8, 2, 0, 0, 0))
    raw = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(raw).decode()}"}}


async def test_sessions_with_images_stay_and_find_their_cache(real: Real, capsys: pytest.CaptureFixture[str]) -> None:
    """Four sessions of six turns, two of which begin with the same picture: each stays on its instance, which has more
    than two thirds of every follow-up cached; what is predicted is never more than is there."""
    rows = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
        for number in range(4):
            parts = [{"type": "text", "text": f"What is on page {number}? "}, png(number // 2)]
            messages: list[dict[str, Any]] = [SYSTEM, {"role": "user", "content": parts}]
            for turn in range(6):
                body = {"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0}
                path, answer = await exchange(real, http, body)
                made = await real.decision(path)
                usage = answer["usage"]
                cached = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
                hit = made["smetric"]["hit_bytes"] / made["smetric"]["prompt_bytes"]
                rows.append(
                    (number, turn, made["served_by"], made["smetric"]["reason"], round(hit, 3), round(cached, 3))
                )
                shown = [{"type": "text", "text": f"Step {turn}. {WORDS * 2}"}, png(100 + 10 * number + turn)]
                messages += [
                    {"role": "assistant", "content": f"{number}.{turn}: I see a button and click on it. " * 4},
                    {"role": "user", "content": shown},
                ]
                await asyncio.sleep(1)  # the engine's events come meanwhile
    with capsys.disabled():
        print("\nsession turn instance reason predicted cached (shares of the prompt)")
        print("\n".join(map(str, rows)))
    for number in range(4):
        session = [row for row in rows if row[0] == number]
        assert len({row[2] for row in session}) == 1
        assert [row[3] for row in session] == ["first_turn"] + ["stick"] * 5
        assert all(row[5] > 2 / 3 for row in session[1:])
    assert len({row[2] for row in rows}) == 2
