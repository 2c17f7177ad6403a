"""The books of requests in flight balance on every path."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from extproc.base.load import Load
from extproc.routing.pools.loads import Loads, PairTicket, Ticket


def test_a_request_counts_from_start_to_release() -> None:
    """Requests and bytes to prefill rise at the start and fall at the end."""
    loads = Loads()
    ticket = loads.start("pool", "a", 4000)
    assert loads.view("pool", ["a", "b"]) == ([1, 0], [4000, 0])
    ticket.release()
    assert loads.snapshot("pool") == {}


def test_a_request_served_elsewhere_moves() -> None:
    """Where Envoy retried on another host, that host carries the load, and gives it back."""
    loads = Loads()
    ticket = loads.start("pool", "a", 100)
    ticket.move("b")
    assert loads.snapshot("pool") == {"b": Load(1, 100)}
    ticket.release()
    assert loads.snapshot("pool") == {}


def test_peers_are_added_until_dropped() -> None:
    """Loads of other replicas count, are replaced by their next word, and vanish with them; pools stay apart."""
    loads = Loads()
    loads.start("pool", "a", 10)
    loads.snapshot("pool")
    loads.merge("r2", "pool", {"a": Load(2, 30), "b": Load(1)})
    loads.merge("r2", "other", {"a": Load(9, 9)})
    assert loads.view("pool", ["a", "b"]) == ([3, 1], [40, 0])
    loads.merge("r2", "pool", {"b": Load(1)})
    assert loads.view("pool", ["a", "b"]) == ([1, 1], [10, 0])
    loads.drop("r2")
    assert loads.view("pool", ["a", "b"]) == ([1, 0], [10, 0])
    assert loads.view("other", ["a"]) == ([0], [0])


def test_peers_are_taken_to_do_what_we_just_did() -> None:
    """Two routers that see one idle instance at once must not both fill it: what was not told yet counts for each."""
    loads = Loads()
    loads.merge("r2", "pool", {})
    loads.merge("r3", "pool", {"b": Load(4)})
    loads.start("pool", "a", 100)
    assert loads.view("pool", ["a", "b"]) == ([3, 4], [300, 0])
    loads.snapshot("pool")
    assert loads.view("pool", ["a", "b"]) == ([1, 4], [100, 0])
    loads.drop("r2")
    loads.drop("r3")
    loads.start("pool", "a", 100)
    assert loads.view("pool", ["a", "b"]) == ([2, 0], [200, 0])


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["start", "move", "release"]))))
def test_the_books_balance_after_any_interleaving(steps: list[tuple[int, str]]) -> None:
    """Whatever happens to tickets, in any order and any number of times, counts equal the tickets still open."""
    loads = Loads()
    tickets: dict[int, Ticket] = {}
    for number, step in steps:
        if step == "start" and number not in tickets:
            tickets[number] = loads.start("pool", "ab"[number % 2], number)
        elif number in tickets:
            ticket = tickets[number]
            step_of = {"release": ticket.release, "move": partial(ticket.move, "b")}
            step_of.get(step, ticket.release)()
        assert all(min(load) >= 0 for load in loads.snapshot("pool").values())
    for ticket in tickets.values():
        ticket.release()
        ticket.release()
        ticket.move("a")
    assert loads.snapshot("pool") == {}


def test_the_loads_of_a_pair() -> None:
    """Prefill is given back when it is over, decode at the end; in any order and as often as one likes."""
    loads = Loads()
    pair = PairTicket(loads.start("pool", "p", 700), loads.start("pool", "d", 0))
    assert loads.snapshot("pool") == {"p": Load(1, 700), "d": Load(1)}
    pair.prefilled()
    pair.move("e")
    assert loads.snapshot("pool") == {"e": Load(1)}
    pair.release()
    pair.prefilled()
    pair.release()
    assert loads.snapshot("pool") == {}
