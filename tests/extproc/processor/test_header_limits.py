"""Which of our headers a request has room for, at the limits of Envoy and just below them."""

from __future__ import annotations

from extproc.base.headers import DESTINATION, POOL, PREFILLER, RANK
from extproc.base.model import Gateway
from extproc.processor.header_limits import Extent, extent_of, fit
from extproc.processor.messages import Mutation

METADATA = {"envoy.lb": {DESTINATION: "10.0.0.1:8000"}}
OURS = Mutation({DESTINATION: "10.0.0.1:8000", RANK: "3", PREFILLER: "10.0.0.2:8000"}, (POOL,), METADATA)
GATEWAY = Gateway(max_headers=10, max_header_bytes=500)


def lines(count: int) -> Extent:
    return Extent(count, 100)


def test_where_there_is_room_nothing_changes() -> None:
    """The mutation is the very one that was decided, absent headers to remove among it."""
    assert fit(OURS, {"a": "b"}, lines(7), GATEWAY) == (OURS, ())
    assert fit(OURS, {}, Extent(0, 0), Gateway()) == (OURS, ())


def test_the_destination_goes_first() -> None:
    """The metadata names it too; what an engine reads stays for as long as it can."""
    fitted, left = fit(OURS, {"a": "b"}, lines(8), GATEWAY)
    assert (set(fitted.set_headers), left) == ({RANK, PREFILLER}, (DESTINATION,))
    assert fitted.metadata == METADATA
    fitted, left = fit(OURS, {"a": "b"}, lines(9), GATEWAY)
    assert (set(fitted.set_headers), left) == ({RANK}, (DESTINATION, PREFILLER))


def test_a_full_request_is_left_alone() -> None:
    """At the limit nothing is added; above it, where Envoy's own headers lead, nothing is even removed."""
    fitted, left = fit(OURS, {"a": "b"}, lines(10), GATEWAY)
    assert (fitted.set_headers, fitted.remove_headers, len(left)) == ({}, (), 3)
    fitted, left = fit(OURS, {POOL: "x"}, lines(12), GATEWAY)
    assert (fitted.set_headers, fitted.remove_headers) == ({}, ())
    assert set(left) == {DESTINATION, RANK, PREFILLER, POOL}


def test_what_is_removed_makes_room() -> None:
    """A client's own header that goes anyway leaves its place to one of ours."""
    fitted, left = fit(OURS, {POOL: "x"}, lines(10), GATEWAY)
    assert (set(fitted.set_headers), fitted.remove_headers, len(left)) == ({RANK}, (POOL,), 2)


def test_a_value_that_is_overwritten_needs_no_line() -> None:
    """A forged destination is overwritten even where the request is full."""
    fitted, left = fit(Mutation({DESTINATION: "10.0.0.1:8000"}), {DESTINATION: "9.9.9.9:9"}, lines(10), GATEWAY)
    assert (fitted.set_headers, left) == ({DESTINATION: "10.0.0.1:8000"}, ())


def test_bytes_count_as_well() -> None:
    """Names and values, as Envoy counts them."""
    size = len(DESTINATION) + len("10.0.0.1:8000")
    mutation = Mutation({DESTINATION: "10.0.0.1:8000"})
    assert fit(mutation, {}, Extent(1, 500 - size), GATEWAY) == (mutation, ())
    assert fit(mutation, {}, Extent(1, 500 - size + 1), GATEWAY)[1] == (DESTINATION,)


def test_the_length_of_a_changed_body_comes_before_all() -> None:
    """Without it Envoy would answer 500."""
    mutation = Mutation({DESTINATION: "x", RANK: "1", "content-length": "9"})
    assert set(fit(mutation, {}, lines(9), GATEWAY)[0].set_headers) == {"content-length"}


def test_the_extent_of_headers() -> None:
    """Each name and each value."""
    assert extent_of({":status": "200", "a": "bc"}) == (2, 13)
