"""The APIs that a simulated vLLM speaks: a file and a row each.

Requests become chats (or a plain prompt), which the engine serves alike; only the answers look different. Each API is
read as far as agents use it, independently of `extproc` on purpose: where both agree on a prompt, two readings of
vLLM's rules agree.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadgen.engine import anthropic_api, chat_answers, completions_api, responses_api
from loadgen.engine.api_parts import Api, Body
from loadgen.engine.errors import invalid
from loadgen.json_types import Json

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"

APIS: Mapping[str, Api] = {
    CHAT: chat_answers.API,
    "/v1/completions": completions_api.API,
    MESSAGES: anthropic_api.API,
    RESPONSES: responses_api.API,
}


def read(path: str, body: Body) -> dict[str, Json]:
    """The chat that a request is.

    Raises:
        Refused: 400, it has not the shape of the API's requests.
    """
    try:
        return APIS[path].chat(body)
    except (AttributeError, KeyError, TypeError) as error:
        raise invalid(f"the body is no request of this API ({type(error).__name__}: {error})") from error
