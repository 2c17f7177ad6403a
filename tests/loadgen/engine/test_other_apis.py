"""A simulated engine's other APIs against what vLLM tokenised: they count as an independent reading of its rules."""

from __future__ import annotations

import pytest

from loadgen.engine.chat_api import ChatApi, Served
from loadgen.engine.errors import Refused
from loadgen.engine.other_apis import APIS, _read
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
            assert api.prompt(_read(APIS[path].chat, line["body"])).tolist() == ids, line.get("note")
            seen += 1
    assert seen >= 4


@pytest.mark.parametrize("path", list(APIS))
@pytest.mark.parametrize("body", [{}, {"messages": 5, "input": 5, "prompt": 5}, {"messages": [5], "input": [5]}])
def test_what_is_no_request_is_refused(path: str, body: dict[str, object]) -> None:
    """As vLLM does: 400."""
    with pytest.raises(Refused):
        _read(APIS[path].chat, body)
