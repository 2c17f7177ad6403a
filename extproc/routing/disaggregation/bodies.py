"""The two bodies of one halved request, and which requests have two.

`kv_transfer_params` in the prefill's answer say where the KV is, and must be in the request that the decode instance
gets. Bodies are spliced and never serialised anew, so that both halves render to the same prompt, byte for byte. What
is added stands last in the object: of two equal keys vLLM takes the later one, so a client cannot overrule it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from extproc.base.errors import UnreadableBody
from extproc.requests.bodies import utf8
from extproc.requests.paths import Api, api_of

# The APIs that vLLM can disaggregate, with the fields that limit the reply. The Responses API is none: it keeps state
# in the one engine that answers.
LIMITS: Mapping[Api, tuple[str, ...]] = {
    Api.CHAT: ("max_tokens", "max_completion_tokens"),
    Api.COMPLETIONS: ("max_tokens",),
    Api.MESSAGES: ("max_tokens",),
}


class _Shape(msgspec.Struct, gc=False):
    n: int | None = None
    prompt: msgspec.Raw = msgspec.Raw()
    use_beam_search: bool | None = None


_SHAPES = msgspec.json.Decoder(_Shape)
_TOKEN_IDS = b"-0123456789"


def divisible(path: str, body: bytes) -> bool:
    """Whether a request can be halved: one prompt, one reply.

    The KV of a prompt is freed on the prefill instance as soon as it was pulled once; several replies, or the prompts
    of a batch, would each want it. Never raises.
    """
    if api_of(path) not in LIMITS:
        return False
    try:
        shape = _SHAPES.decode(utf8(body))
    except (UnreadableBody, msgspec.DecodeError, RecursionError):
        return False
    prompt = bytes(shape.prompt).lstrip()
    batch = prompt[:1] == b"[" and prompt[1:].lstrip()[:1] not in _TOKEN_IDS
    return shape.n in (None, 1) and not shape.use_beam_search and not batch


def engines_path(path: str) -> str:
    """Where an engine serves the API of a divisible request. What we send ourselves no route of Envoy's rewrites."""
    api = api_of(path)
    query = path.partition("?")[1:]
    return path if api is None else "".join((api, *query))


def prefill_body(path: str, body: bytes) -> bytes:
    """The body of a divisible request that computes the prompt, samples one token and keeps the KV for another engine
    to pull."""
    api = api_of(path)
    limits = dict.fromkeys(LIMITS[api] if api is not None else (), 1)
    fields = limits | {"min_tokens": 0, "stream": False, "stream_options": None, "kv_transfer_params": _EXPORT}
    return _spliced(body, msgspec.json.encode(fields)[1:-1])


def decode_body(body: bytes, kv_transfer_params: bytes) -> bytes:
    """The request that pulls the KV from where `kv_transfer_params` (JSON) say, and generates the reply."""
    return _spliced(body, b'"kv_transfer_params":' + kv_transfer_params)


_EXPORT = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def _spliced(body: bytes, fields: bytes) -> bytes:
    """A JSON object with more fields at its end."""
    body = utf8(body)
    end = body.rindex(b"}")
    comma = b"" if body[:end].rstrip().endswith(b"{") else b","
    return b"".join((body[:end], comma, fields, body[end:]))


class _Answer(msgspec.Struct, gc=False):
    kv_transfer_params: msgspec.Raw = msgspec.Raw()


_ANSWERS = msgspec.json.Decoder(_Answer)


def kv_transfer_params(answer: bytes) -> bytes | None:
    """The JSON object in a prefill's answer that says where the KV is; None where there is none. Never raises."""
    try:
        found = bytes(_ANSWERS.decode(answer).kv_transfer_params).strip()
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if found.startswith(b"{") else None
