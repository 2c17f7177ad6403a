"""paths.py: an API is recognised by what it is, wherever a gateway puts it, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.requests.paths import Api, api_of, response_in

CHAT, TEXT, MESSAGES, COUNT, RESPONSES = Api

RECOGNISED = {
    # as vLLM serves them
    "/v1/chat/completions": CHAT,
    "/v1/completions": TEXT,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": COUNT,
    "/v1/responses": RESPONSES,
    # behind the name of a team, a model, a namespace
    "/team-a/v1/chat/completions": CHAT,
    "/team-a/v1/messages": MESSAGES,
    "/team-a/v1/messages/count_tokens": COUNT,
    "/prod/llama-70b/v1/completions": TEXT,  # KServe's /<namespace>/<name>
    "/prod/llama-70b/openai/v1/responses": RESPONSES,
    "/models/v1/chat/v1/completions": TEXT,
    "/v1/chat/completions/v1/messages": MESSAGES,
    "/anthropic/v1/messages": MESSAGES,
    # other makers' ways to write the version, and none
    "/chat/completions": CHAT,
    "/api/v3/chat/completions": CHAT,
    "/v1beta/openai/chat/completions": CHAT,
    "/openai/v1/chat/completions": CHAT,
    "/openai/v1/responses": RESPONSES,
    # Azure
    "/openai/deployments/gpt/chat/completions?api-version=2024-10-21": CHAT,
    "/openai/deployments/gpt/completions?api-version=2024-10-21": TEXT,
    "/openai/responses?api-version=2025-04-01-preview": RESPONSES,
    "/v1/engines/llama/completions": TEXT,
    # written oddly
    "/v1/chat/completions/": CHAT,
    "//v1//chat/completions": CHAT,
    "/v1/messages?beta=true": MESSAGES,
    "/v1/responses/?x=/v1/messages": RESPONSES,
    "/v1/chat%2Fcompletions": CHAT,
    "/v1/%63hat/completions": CHAT,
    "/caf%C3%A9/v1/messages#top": MESSAGES,
    "v1/completions": TEXT,
}  # fmt: skip

NONE = [
    "",
    "/",
    "*",
    "?/v1/chat/completions",
    "/#/v1/messages",
    "/tokenize",
    "/v1/models",
    "/v1/embeddings",
    "/v1/chat",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/chat/completionsX",
    "/v1/xchat/completion",
    "/V1/Chat/Completions",
    "/v1/messages/batches",
    "/v1/messages/batches/b1/results",
    "/v1/messages/count_tokens/x",
    "/messages",
    "/completions",
    "/responses",
    "/count_tokens",
    "/v1/count_tokens",
    "/v1/threads/t1/messages",
    "/chat/messages",
    "/messages/count_tokens",
    "/v2/responses/compact",
    "/deployments/completions",
    "/v1/responses/resp_1",
    "/v1/responses/resp_1/cancel",
    "/v1%252Fchat%252Fcompletions",
    "/v1/chat%ZZ/completions%",
    "/openai/deployments/gpt/embeddings",
]

STORED = {
    "/v1/responses/resp_1": "resp_1",
    "/v1/responses/resp_1/": "resp_1",
    "/v1/responses/resp_1/cancel": "resp_1",
    "/v1/responses/resp_1/input_items?limit=2": "resp_1",
    "/v1/responses/resp_1?stream=true": "resp_1",
    "/team-a/v1/responses/resp_1": "resp_1",
    "/openai/responses/resp_1?api-version=2025-04-01-preview": "resp_1",
    "/openai/v1/responses/resp_1/cancel": "resp_1",
    "/v1//responses//resp%5F1": "resp_1",
    "/v1/responses/cancel": None,
    "/v1/responses": None,
    "/v1/responses/": None,
    "/v1/responses/compact": None,
    "/v1/responses/input_tokens": None,
    "/v1/responses/" + "x" * 129: None,
    "/v1/responses/a/b": None,
    "/form/responses/resp_1": None,
    "/v1/chat/completions": None,
    "": None,
}


@pytest.mark.parametrize("path", RECOGNISED)
def test_an_api_is_recognised_wherever_a_gateway_puts_it(path: str) -> None:
    """Prefixes, per-model paths, queries, slashes and percent-encoding do not hide it."""
    assert api_of(path) is RECOGNISED[path]


@pytest.mark.parametrize("path", NONE)
def test_nothing_else_is_taken_for_an_api(path: str) -> None:
    """Neighbours and parts of our APIs, and other services' words, are no APIs of ours."""
    assert api_of(path) is None


@pytest.mark.parametrize("path", STORED)
def test_the_response_that_a_path_is_about_is_found(path: str) -> None:
    """To read, to cancel and to delete it; a word of the API itself is no id."""
    assert response_in(path) == STORED[path]


@given(st.text() | st.lists(st.sampled_from(["v1", "chat", "completions", "responses", "%2f", "/", "?"])).map("/".join))
def test_no_path_raises(path: str) -> None:
    """Whatever a client writes there."""
    api_of(path)
    response_in(path)


@given(st.sampled_from(Api), st.text("ab/%?#").filter(lambda front: not set(front) & {"?", "#"}), st.text())
def test_what_stands_around_it_changes_nothing(api: Api, front: str, query: str) -> None:
    """Any prefix and any query."""
    assert api_of(f"/{front}{api}?{query}") is api
