"""A gateway for tests: sends over real gRPC what Envoy's ext_proc filter sends, and holds answers to Envoy's rules.

Each body mode has an order of its own: BUFFERED waits for the answer to the headers, STREAMED for one answer to each
piece, FULL_DUPLEX_STREAMED for nothing at all. What is forwarded is what a real Envoy would have sent to the engine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from google.protobuf import json_format

from extproc.base.headers import DESTINATION, NAMESPACE, SERVED, SUBSET, SUBSET_NAMESPACE
from extproc.processor import wire

CHAT = "/v1/chat/completions"
PATIENCE_S = 20.0
MAX_CHUNK = 62_000  # bytes; the reference picker's own, below the 64 KiB that Envoy refuses
OVERWRITE = 2

DUPLEX = "FULL_DUPLEX_STREAMED"
MODES = ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", DUPLEX)
# Where the destination is needed before the body is seen, load decides.
BLIND = ("NONE", "STREAMED")


@dataclass
class Outcome:
    """What became of a request: forwarded with these headers, metadata and body, or answered by the picker itself."""

    set_headers: dict[str, str] = field(default_factory=dict)
    removed_headers: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False  # the body said end_of_stream
    trailers: bool = False  # ... or was followed by trailers
    status: int | None = None  # of the picker's own answer; None: forwarded
    error: dict[str, Any] = field(default_factory=dict)

    @property
    def destinations(self) -> list[str]:
        """The list that both channels of the protocol must carry alike."""
        named: str = self.metadata.get(NAMESPACE, {}).get(DESTINATION, "")
        return named.split(",") if named else []

    @property
    def reason(self) -> str:
        return str(self.metadata.get("smetric", {}).get("reason"))


class Gateway:
    """One HTTP exchange of a gateway, as one ext_proc stream."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        mode: str,
        response_mode: str = "NONE",
        *,
        route: Mapping[str, str] | None = None,
    ) -> None:
        method = channel.stream_stream(
            f"/{wire.SERVICE}/{wire.METHOD}",
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )
        self.mode, self.response_mode = mode, response_mode
        self.stream = method(metadata=tuple((route or {}).items()))
        self.outcome = Outcome()
        self._hint: Any = None

    async def request(
        self,
        *pieces: bytes,
        trailers: bool = False,
        headers: Mapping[str, str] | None = None,
        hint: Any = None,
        path: str = CHAT,
    ) -> Outcome:
        """Send a request, its body in these pieces (none: no body), and obey the answers until it is forwarded.

        `hint` is the subset hint as JSON; Envoy repeats metadata on every message.
        """
        self._hint = hint
        method = "POST" if pieces else "GET"
        opening = self.opening({":method": method, ":path": path, **(headers or {})}, last=not pieces)
        if self.mode == DUPLEX:
            await self._duplex(opening, pieces, trailers=trailers)
        else:
            await self._in_turns(opening, pieces, trailers=trailers)
        return self.outcome

    async def respond(
        self, *pieces: bytes, status: str = "200", served: str | None = None, trailers: bool = False
    ) -> tuple[dict[str, str], bytes]:
        """The engine's answer, in these pieces: the headers that were set on it, and the body that a client gets."""
        message = self._message(
            response_headers={"headers": {"headers": pairs_of({":status": status})}, "end_of_stream": not pieces}
        )
        if served is not None:
            message.metadata_context.filter_metadata[NAMESPACE].update({SERVED: served})
        answer = await self._ask(message, "response_headers")
        mutation = answer.response_headers.response.header_mutation
        told = {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}
        got = [
            await self._respond_piece(data, last=i == len(pieces) - 1 and not trailers) for i, data in enumerate(pieces)
        ]
        if trailers:
            await self._ask(self._message(response_trailers={}), "response_trailers")
        return told, b"".join(got)

    async def end(self) -> None:
        """The HTTP exchange is over. The picker must end too, and must not have said more than it was asked."""
        await self.stream.done_writing()
        assert await self._read() is grpc.aio.EOF
        assert await self.stream.code() is grpc.StatusCode.OK

    async def read(self) -> ProcessingResponse:
        """One answer, which must come."""
        answer = await self._read()
        assert answer is not grpc.aio.EOF, "the picker ended the stream and left the request without an answer"
        return answer

    async def write(self, message: ProcessingRequest) -> None:
        """Any message, at any time."""
        await self.stream.write(message)

    def opening(self, headers: Mapping[str, str] | None = None, *, last: bool = False) -> ProcessingRequest:
        """The request's headers, with which a stream begins."""
        return self._message(
            request_headers={"headers": {"headers": pairs_of(headers or {":path": CHAT})}, "end_of_stream": last},
            protocol_config={"request_body_mode": self.mode, "response_body_mode": self.response_mode},
        )

    def body(self, data: bytes, *, last: bool, hint: Any = None) -> ProcessingRequest:
        """A piece of a request body."""
        self._hint = self._hint if hint is None else hint
        message = self._message(request_body={"end_of_stream": last})
        message.request_body.body = data
        return message

    def trailers(self) -> ProcessingRequest:
        """The end of a request that has trailers."""
        return self._message(request_trailers={})

    async def _duplex(self, opening: ProcessingRequest, pieces: Sequence[bytes], *, trailers: bool) -> None:
        messages = [self.body(data, last=i == len(pieces) - 1 and not trailers) for i, data in enumerate(pieces)]
        messages += [self.trailers()] if trailers else []
        for message in (opening, *messages):
            await self.stream.write(message)
        if self._take(await self.read(), "request_headers") or not pieces:
            return
        while not (self.outcome.ended or self.outcome.trailers):
            answer = await self.read()
            if answer.WhichOneof("response") == "request_trailers":
                assert trailers, "trailers that the client never sent"
                self.outcome.trailers = True
                return
            self._take_piece(answer)
        assert not trailers, "end_of_stream before the trailers: Envoy would drop them"

    def _take_piece(self, answer: ProcessingResponse) -> None:
        assert answer.WhichOneof("response") == "request_body", "headers, body, trailers: in this order"
        data, end = streamed(answer.request_body)
        self.outcome.body += data
        self.outcome.ended = end

    async def _in_turns(self, opening: ProcessingRequest, pieces: Sequence[bytes], *, trailers: bool) -> None:
        if self._take(await self._ask(opening, "request_headers"), "request_headers") or not pieces:
            return
        self.outcome.body = b"".join(pieces)
        self.outcome.ended = not trailers
        if self.mode.startswith("BUFFERED"):
            pieces = [b"".join(pieces)]
        for i, data in enumerate(pieces if self.mode != "NONE" else ()):
            answer = await self._ask(self.body(data, last=i == len(pieces) - 1 and not trailers), "request_body")
            if self._take(answer, "request_body"):
                return
        if trailers:
            self._take(await self._ask(self.trailers(), "request_trailers"), "request_trailers")
            self.outcome.trailers = True

    async def _ask(self, message: ProcessingRequest, kind: str) -> ProcessingResponse:
        await self.stream.write(message)
        answer = await self.read()
        assert answer.WhichOneof("response") in (kind, "immediate_response")
        return answer

    async def _respond_piece(self, data: bytes, *, last: bool) -> bytes:
        if self.response_mode == "NONE":
            return data
        message = self._message(response_body={"end_of_stream": last})
        message.response_body.body = data
        await self.stream.write(message)
        if self.response_mode != DUPLEX:
            answer = await self.read()
            assert answer.WhichOneof("response") == "response_body"
            assert not answer.response_body.response.HasField("body_mutation"), "a streamed_response where none belongs"
            return data
        got, end = b"", False
        while len(got) < len(data) or (last and not end):
            answer = await self.read()
            assert answer.WhichOneof("response") == "response_body"
            piece, end = streamed(answer.response_body)
            got += piece
        assert end == last
        return got

    def _take(self, answer: ProcessingResponse, kind: str) -> bool:
        """Obey an answer; True where it is the picker's own answer to the client."""
        json_form = json_format.MessageToDict(answer.dynamic_metadata)
        self.outcome.metadata |= json_form
        if answer.WhichOneof("response") == "immediate_response":
            immediate = answer.immediate_response
            self.outcome.status = immediate.status.code
            self.outcome.error = json.loads(immediate.body)["error"]
            self._take_headers(immediate.headers)
            return True
        assert answer.WhichOneof("response") == kind
        if kind != "request_trailers":
            common = getattr(answer, kind).response
            assert not common.HasField("body_mutation"), "a streamed_response where none belongs"
            self._take_headers(common.header_mutation)
        return False

    def _take_headers(self, mutation: Any) -> None:
        for option in mutation.set_headers:
            assert not option.header.value, "Envoy refuses a header with both value and raw_value"
            assert option.append_action == OVERWRITE, "a client's own value would survive"
            self.outcome.set_headers[option.header.key] = option.header.raw_value.decode()
        self.outcome.removed_headers += mutation.remove_headers

    def _message(self, **fields: Any) -> ProcessingRequest:
        message: ProcessingRequest = json_format.ParseDict(fields, ProcessingRequest())
        if self._hint is not None:
            hint = {} if self._hint is NULL else {SUBSET: self._hint}
            message.metadata_context.filter_metadata[SUBSET_NAMESPACE].update(hint or {SUBSET: None})
        return message

    async def _read(self) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await self.stream.read()


NULL = object()  # a hint of null, which is none


def pairs_of(headers: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in headers.items()]


def streamed(answer: Any) -> tuple[bytes, bool]:
    """The piece in a streamed_response, which must be one that Envoy takes."""
    assert answer.response.body_mutation.WhichOneof("mutation") == "streamed_response"
    piece = answer.response.body_mutation.streamed_response
    assert len(piece.body) <= MAX_CHUNK
    return piece.body, piece.end_of_stream


def chat(content: str = "hello", **fields: Any) -> bytes:
    """A chat request."""
    return json.dumps({"model": "tiny", "messages": [{"role": "user", "content": content}], **fields}).encode()
