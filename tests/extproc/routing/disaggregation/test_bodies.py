"""Which requests can be halved, and the two bodies of one that is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.routing.disaggregation.bodies import (
    decode_body,
    divisible,
    engines_path,
    kv_transfer_params,
    prefill_body,
)

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (CHAT, '{"messages": []}', True),
        (CHAT + "?x=1", '{"messages": [], "n": 1}', True),
        (CHAT, '{"n": null}', True),
        (CHAT, '{"n": 2}', False),
        (f"/team-a{CHAT}/?x=1", "{}", True),
        ("/openai/deployments/m/completions?api-version=1", '{"prompt": "text"}', True),
        (f"{CHAT}/render", "{}", False),
        (CHAT, '{"n": "1"}', False),
        (CHAT, '{"use_beam_search": true}', False),
        (CHAT, "[]", False),
        (CHAT, "{", False),
        (CHAT, "[" * 100_000, False),
        ("/v1/completions", '{"prompt": "text"}', True),
        ("/v1/completions", '{"prompt": [1, 2]}', True),
        ("/v1/completions", '{"prompt": [ 1]}', True),
        ("/v1/completions", '{"prompt": ["a", "b"]}', False),
        ("/v1/completions", '{"prompt": [[1], [2]]}', False),
        ("/v1/completions", '{"prompt": []}', False),
        ("/v1/messages", '{"messages": []}', True),
        ("/v1/messages/count_tokens", '{"messages": []}', False),
        ("/v1/responses", '{"input": "x"}', False),
        ("/tokenize", '{"prompt": "x"}', False),
        ("", "{}", False),
    ],
)
def test_divisible(path: str, body: str, expected: bool) -> None:
    """One prompt and one reply of an API that vLLM can disaggregate; nothing else, and no body is an error."""
    assert divisible(path, body.encode()) is expected


def test_the_prefill_request() -> None:
    """One token, not streamed, and the KV kept: whatever the client asked for, and its prompt as it wrote it."""
    body = b' {"messages":[{"role":"user","content":"\\u00e9"}],"max_tokens":900,"min_tokens":5,"stream":true,\n"n":1} '
    made = prefill_body(CHAT, body)
    assert made.startswith(body.rstrip()[:-1])
    asked = json.loads(made)
    assert asked["messages"] == [{"role": "user", "content": "é"}]
    assert (asked["max_tokens"], asked["max_completion_tokens"], asked["min_tokens"]) == (1, 1, 0)
    assert (asked["stream"], asked["stream_options"]) == (False, None)
    assert asked["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    assert "max_completion_tokens" not in json.loads(prefill_body("/v1/messages", b"{}"))


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        (CHAT, CHAT),
        (f"/team-a{CHAT}/?x=1&y=/v1/messages", f"{CHAT}?x=1&y=/v1/messages"),
        ("/openai/deployments/m/completions?api-version=1", "/v1/completions?api-version=1"),
        ("/tokenize?x", "/tokenize?x"),
    ],
)
def test_the_prefill_request_goes_where_engines_serve_the_api(path: str, sent: str) -> None:
    """No route of Envoy's rewrites what we send ourselves."""
    assert engines_path(path) == sent


objects = st.dictionaries(
    st.text(max_size=3) | st.just("kv_transfer_params"),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
)


@given(objects, st.sampled_from([None, 1]), st.sampled_from(["", " ", "\n\t"]))
def test_the_decode_request_is_the_clients_and_the_params(body: dict[str, Any], indent: int | None, space: str) -> None:
    """Whatever the object, every byte of it stays, and of two kv_transfer_params ours counts."""
    written = (space + json.dumps(body, indent=indent) + space).encode()
    made = decode_body(written, b'{"do_remote_prefill":true}')
    assert json.loads(made) == body | {"kv_transfer_params": {"do_remote_prefill": True}}
    head, _, tail = written.rpartition(b"}")
    assert made.startswith(head)
    assert made.endswith(b"}" + tail)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b'{"choices": [], "kv_transfer_params": {"remote_block_ids": [[1, 2]], "x": 123456789012345678901}}', True),
        (b'{"kv_transfer_params": null}', False),
        (b'{"kv_transfer_params": [1]}', False),
        (b'{"kv_transfer_params": "{"}', False),
        (b"{}", False),
        (b"null", False),
        (b"", False),
        (b"<html>", False),
        (b'{"kv_transfer_params": ' + b"[" * 100_000, False),
    ],
)
def test_params_of_an_answer(answer: bytes, expected: bool) -> None:
    """An object, byte for byte as the engine wrote it, or nothing; no answer is an error."""
    found = kv_transfer_params(answer)
    assert (found is not None) is expected
    assert found is None or found in answer
