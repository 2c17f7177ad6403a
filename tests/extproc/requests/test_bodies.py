"""bodies.py: a body is read wherever vLLM reads it: in every encoding, and numbers that are no JSON."""

from __future__ import annotations

import codecs
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.base.errors import UnreadableBody
from extproc.requests import apis
from extproc.requests.bodies import document, utf8
from extproc.requests.paths import Api
from extproc.routing.disaggregation.bodies import decode_body, divisible, prefill_body

ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
BODY = '{"model": "m\u00e9", "messages": [{"role": "user", "content": "caf\u00e9 \U0001f600 \u4f60"}], "max_tokens": 9}'


def encoded(text: str, encoding: str) -> bytes:
    """With a byte-order mark where the encoding has one."""
    return text.encode(encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_reader_of_bodies_reads_every_encoding(encoding: str) -> None:
    """The request, the model that chooses the pool, and the bodies of a halved request are the same as in UTF-8."""
    body, plain = encoded(BODY, encoding), BODY.encode()
    request = apis.parse(Api.CHAT, body)
    assert request.messages == apis.parse(Api.CHAT, plain).messages
    assert apis.model_of(body) == "m\u00e9"
    assert divisible(Api.CHAT, body)
    assert json.loads(prefill_body(Api.CHAT, body))["max_tokens"] == 1
    assert json.loads(decode_body(body, b"{}")) == {**json.loads(BODY), "kv_transfer_params": {}}


@pytest.mark.parametrize(
    "body",
    [
        codecs.BOM_UTF16_LE + b"x",
        codecs.BOM_UTF16_LE + b"\x00\xd8{\x00",
        codecs.BOM_UTF32_BE + b"\x00\x11\x00\x00",
        b"{\x00\x00\x00\xff\xff\xff\xff",
        codecs.BOM_UTF8 + b"\xff",
        codecs.BOM_UTF8 + codecs.BOM_UTF8 + b"{}",
    ],
)
def test_what_its_first_bytes_promise_and_it_is_not_is_unreadable(body: bytes) -> None:
    """A damaged body is the engine's to judge, whatever reads it here."""
    with pytest.raises(UnreadableBody):
        apis.parse(Api.CHAT, body)
    assert apis.model_of(body) is None
    assert not divisible(Api.CHAT, body)


def test_plain_utf8_is_not_copied() -> None:
    """Nearly all bodies are so, and some are long."""
    body = BODY.encode()
    assert utf8(body) is body


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400"])
def test_numbers_that_are_no_json_are_read(number: str) -> None:
    """Python clients write them, in a tool's schema for instance, and vLLM reads them."""
    body = f'{{"model": "m", "messages": [{{"role": "user", "content": "go"}}], "x": {number}}}'.encode()
    assert apis.parse(Api.CHAT, body).messages == [{"role": "user", "content": "go"}]
    assert apis.model_of(body) == "m"


JSON = st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(JSON, st.sampled_from(ENCODINGS), st.booleans())
def test_a_document_that_python_reads_is_the_same_here(value: object, encoding: str, escaped: bool) -> None:
    """vLLM reads bodies with `json.loads`, which is the oracle."""
    body = encoded(json.dumps(value, ensure_ascii=escaped), encoding)
    assert json.loads(utf8(body)) == json.loads(body)
    assert document(body) == json.loads(body)


@given(st.binary(max_size=12))
def test_any_bytes_are_read_or_unreadable(body: bytes) -> None:
    """Nothing else is raised, and nothing is refused that Python reads and a tokenizer can take."""
    try:
        expected = json.loads(body)
        json.dumps(expected, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        with pytest.raises(UnreadableBody):
            document(body)
    else:
        assert repr(document(body)) == repr(expected)
