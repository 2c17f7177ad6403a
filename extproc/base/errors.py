"""The errors of the product: few, each with the HTTP status and the slug a client may see.

A library's error is translated into one of these once, at the edge where it appears.
"""

from __future__ import annotations


class ExtProcError(Exception):
    """Base of all errors raised on purpose. `status` is the HTTP status, `slug` the `error.code` of the JSON body."""

    status = 500
    slug = "internal_error"
    retry_after_s: int | None = None


class ConfigError(ExtProcError):
    """The configuration cannot be used; the message says where and what to write instead."""

    slug = "configuration_error"


class UnreadableBody(ExtProcError):
    """The body is not a request that we can parse; the engine will judge it."""

    status = 400
    slug = "unreadable_body"


class BodyTooCostly(ExtProcError):
    """The body holds more of something than any request that we would read; decide by load."""

    status = 413
    slug = "body_too_costly"


class TakesLong(ExtProcError):
    """To read this body takes longer than there is time where it was to be read."""

    slug = "takes_long"


class UnsupportedApi(ExtProcError):
    """The path is not an API whose prompt we can render; route by load."""

    status = 404
    slug = "unsupported_api"


class RenderError(ExtProcError):
    """The chat template refused or failed on this request; the engine will judge it."""

    status = 400
    slug = "render_failed"


class UnknownToken(ExtProcError):
    """An engine reported a token id that the pool's vocabulary lacks: `model_dir` is not the model that it serves."""

    slug = "unknown_token"


class IndexUnavailable(ExtProcError):
    """The index did not answer within its budget; decide by load."""

    status = 503
    slug = "index_unavailable"


class IndexLost(IndexUnavailable):
    """What the writer of these instances wrote is gone from the index, or another took over: it must be rewritten."""

    def __init__(self, pool: str, instances: frozenset[str]) -> None:
        super().__init__(f"pool {pool!r}: the index lost what was written of {', '.join(sorted(instances))}")
        self.pool = pool
        self.instances = instances


class NoInstance(ExtProcError):
    """No instance may serve the request: the pool is empty, or holds none of those that the gateway allows."""

    status = 503
    slug = "no_instance_available"


class Shed(ExtProcError):
    """Every instance is at the route's limit of requests in flight (`x-smetric-max-load`)."""

    status = 429
    slug = "pool_overloaded"
    # In a pool that is full some request ends every moment; a client that waits for minutes would leave it idle.
    retry_after_s = 1


class BodyTimeout(ExtProcError):
    """The request's body did not end in time, in the one mode in which Envoy leaves that to us."""

    status = 408
    slug = "request_timeout"
