"""The one error of the simulated engine that a client sees, in vLLM's words."""

from __future__ import annotations

import msgspec


class Refused(Exception):
    """The request is answered with an error. `kind` is vLLM's `error.type`, `param` the field at fault."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self, *, anthropic: bool = False) -> bytes:
        """The JSON body, as OpenAI's clients expect it, or Anthropic's."""
        if anthropic:
            error = {"type": self.kind, "message": str(self)}
            return msgspec.json.encode({"type": "error", "error": error})
        return msgspec.json.encode(
            {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}
        )


def bad_request(message: str, param: str | None = None) -> Refused:
    """400 for a request that was understood and cannot be served."""
    return Refused(400, "BadRequestError", message, param)


def invalid(message: str, param: str | None = None) -> Refused:
    """400 for a body of the wrong shape."""
    return Refused(400, "Bad Request", f"1 validation error: {message}", param)
