"""Estimates of what a body costs: they grow with everything that a client can add, and cost little themselves."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from extproc.requests import apis
from extproc.requests.cost import decoding_us, rendering_us

USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize("added", ["text", "é", "[]", "{}", ", 1", "\\u00e9"])
def test_decoding_grows_with_what_is_added(added: str) -> None:
    """Length, brackets, entries, and letters beyond ASCII, as themselves or escaped."""
    plain = "x" * 1000
    assert decoding_us((plain + added * 100).encode()) > 1.05 * decoding_us(plain.encode())


def rendering(**fields: Any) -> float:
    return rendering_us(apis.parse("/v1/chat/completions", json.dumps(fields).encode()), math.inf)


def test_rendering_grows_with_what_a_template_goes_through() -> None:
    """Messages, their parts and calls, what stands in tools and arguments, however deep."""
    deep: dict[str, Any] = {}
    for _ in range(50):
        deep = {"a": deep}
    call = {"function": {"name": "f", "arguments": json.dumps(deep)}}
    costs = [
        rendering(messages=[USER]),
        rendering(messages=[{**USER, "content": ["a"]}]),
        rendering(messages=[{**USER, "content": ["a", "b", "c"]}]),
        rendering(messages=[USER] * 10),
        rendering(messages=[USER, {"role": "assistant", "tool_calls": [call]}]),
        rendering(messages=[USER] * 10, tools=[{"function": {"name": "f", "parameters": deep}}]),
    ]
    assert costs == sorted(set(costs))


def test_counting_ends_where_it_is_enough() -> None:
    """A request of a million entries is not walked through to learn that it is too much."""
    request = apis.parse("/v1/chat/completions", json.dumps({"messages": [USER] * 10_000}).encode())
    assert 1000 < rendering_us(request, 1000.0) < 1100
