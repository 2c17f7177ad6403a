"""A prefill falls with what the engine says, ends at its last block, and every way out gives the load back once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.base.facts import Fact
from extproc.base.load import IDLE, Load
from extproc.routing.pace import Given, Learner
from extproc.routing.pools.loads import Loads, Ticket
from extproc.routing.pools.prefills import Ended, Prefills, Prompt

BLOCK = 100
A = [1, 2, 3, 4, 5, 6, 7, 8]
B = [1, 2, 3, 4, 15, 16]  # shares the first half of A


class Setup:
    """A pool's prefills and loads, as the router uses them."""

    def __init__(self) -> None:
        self.loads = Loads()
        self.prefills = Prefills(Learner(Given(1e-6, 1e12)))  # a microsecond a byte

    def send(self, chain: list[int], hit: int = 0, *, instance: str = "i", now: float = 0.0) -> Ticket:
        """Send a prompt of whole blocks and half a block more, of which `hit` blocks are cached."""
        prompt = Prompt(chain, BLOCK, BLOCK * len(chain) + BLOCK // 2, BLOCK * hit, BLOCK * hit)
        ticket = self.loads.start("pool", instance, prompt.length - prompt.hit, 1e-6 * (prompt.length - prompt.hit))
        self.prefills.begin(instance, prompt, ticket, now)
        return ticket

    def said(self, *stored: int, instance: str = "i", now: float = 1.0, span: int = 1) -> list[Ended]:
        """The engine stored these keys, and all before each."""
        return list(self.prefills.hear(Fact(instance, stored=stored, span=span), now))

    def load(self, instance: str = "i") -> Load:
        """What is counted there."""
        return self.loads.snapshot("pool").get(instance, IDLE)


def test_bytes_fall_chunk_by_chunk_and_end_with_the_last_block() -> None:
    """850 bytes: what is stored is not left, and with the last whole block nothing is; the request stays in flight."""
    setup = Setup()
    ticket = setup.send(A)
    assert setup.load() == Load(1, 850, 850)
    assert setup.said(3) == []
    assert setup.load() == Load(1, 550, 550)
    assert setup.said(3, 5, now=2.0) == []
    assert setup.load() == Load(1, 350, 350)
    assert setup.said(8, now=3.0) == [Ended("i", 3.0)]
    assert setup.load() == Load(1, 0, 0)
    assert setup.said(8, now=4.0) == [], "what is over stays over"
    ticket.release()
    ticket.release()
    assert setup.load() == IDLE
    assert len(setup.prefills) == 0


def test_what_is_old_or_of_somebody_else_changes_nothing() -> None:
    """Another prompt, another instance, blocks that were cached before, and chunks in the wrong order."""
    setup = Setup()
    setup.send(A, hit=2)
    setup.said(77)
    setup.said(8, instance="j")
    setup.said(2)
    assert setup.load() == Load(1, 650, 650)
    setup.said(6)
    setup.said(4)
    assert setup.load() == Load(1, 250, 250)


def test_a_shared_prefix_in_flight_twice() -> None:
    """Two prompts on one instance share half of their blocks: one computation lowers both, and each ends by its own."""
    setup = Setup()
    first, second = setup.send(A), setup.send(B, now=0.5)
    assert setup.load() == Load(2, 1500, 1500)
    setup.said(4)
    assert setup.load() == Load(2, 700, 700)
    assert setup.said(8, now=2.0) == [Ended("i", 2.0)]
    assert setup.load() == Load(2, 250, 250)
    first.release()
    assert setup.load() == Load(1, 250, 250)
    assert setup.said(16, now=3.0) == [Ended("i", 2.5)]
    second.release()
    assert setup.load() == IDLE


def test_the_same_prompt_twice() -> None:
    """Both are over when it is stored, though the engine speaks once."""
    setup = Setup()
    tickets = [setup.send(A), setup.send(A)]
    assert len(setup.said(8)) == 2
    assert setup.load() == Load(2, 0, 0)
    for ticket in tickets:
        ticket.release()
    assert setup.load() == IDLE


def test_a_prompt_that_is_cached_has_nothing_to_be_told_of() -> None:
    """Half a block is missing, which the engine will not speak of: the headers end it, and it is not kept."""
    setup = Setup()
    ticket = setup.send(A, hit=8)
    assert setup.load() == Load(1, 50, 50)
    assert len(setup.prefills) == 0
    ticket.answered()
    assert setup.load() == Load(1, 0, 0)
    ticket.release()
    assert setup.load() == IDLE


def test_headers_say_nothing_of_a_prefill_that_events_tell_of() -> None:
    """An engine answers a streamed request before it prefills."""
    setup = Setup()
    setup.send(A).answered()
    assert setup.load() == Load(1, 850, 850)


def test_blocks_of_an_engine_that_span_several_of_ours() -> None:
    """The last three prompt blocks may fill no block of the engine: the prompt is over without them."""
    setup = Setup()
    setup.send(A)
    assert len(setup.said(5, span=3)) == 1
    assert setup.load() == Load(1, 0, 0)
    setup.send(A, hit=5)
    assert len(setup.prefills) == 0, "so little that nothing will be said of it"


def test_without_a_word_it_ends_with_the_request() -> None:
    """Events that are lost, or an engine without any: as much as before, until the ticket is given back."""
    setup = Setup()
    ticket = setup.send(A)
    setup.prefills.hear(Fact("i", lost=True), 1.0)
    assert setup.load() == Load(1, 850, 850)
    ticket.release()
    assert setup.load() == IDLE
    assert len(setup.prefills) == 0
    assert setup.said(8) == []
    assert setup.load() == IDLE


def test_a_request_that_was_served_elsewhere() -> None:
    """Where Envoy retried on another host, that host's engine tells how far it is."""
    setup = Setup()
    ticket = setup.send(A)
    ticket.move("j")
    assert setup.said(8) == []
    assert setup.load("j") == Load(1, 850, 850)
    assert len(setup.said(8, instance="j")) == 1
    ticket.release()
    assert setup.load("j") == IDLE


def test_a_word_from_before_the_decision_is_no_time() -> None:
    """What was stored before is stored, but took this request no time."""
    setup = Setup()
    setup.send(A, now=5.0)
    assert list(setup.prefills.hear(Fact("i", stored=[8], age_s=1.0), 5.5)) == []
    assert setup.load() == Load(1, 0, 0)
    assert setup.prefills.usual_s("i") is None


def test_the_usual_time_of_an_instance() -> None:
    """A median, gone with the instance."""
    setup = Setup()
    for number, seconds in enumerate((1.0, 9.0, 2.0)):
        setup.send([10 * number + place for place in range(1, 9)])
        setup.said(10 * number + 8, now=seconds)
    assert setup.prefills.usual_s("i") == 2.0
    setup.prefills.keep({"j"})
    assert setup.prefills.usual_s("i") is None


def test_one_stretch_of_work_is_learnt_once() -> None:
    """Two prompts that share 50,000 bytes, computed in one step of a second: 20 us a byte, not 10."""
    prefills, loads = Prefills(Learner(Given(depth=1e12))), Loads()
    for number in range(12):
        chain = range(1000 * number, 1000 * number + 500)
        for _ in range(2):
            prompt = Prompt(chain, BLOCK, BLOCK * len(chain), 0, 0)
            prefills.begin("i", prompt, loads.start("pool", "i", prompt.length), float(2 * number))
        prefills.hear(Fact("i", stored=[chain[-1]]), 2 * number + 1.0)
    assert prefills.learner.samples == 12
    assert round(1e6 * prefills.pace.byte_s, 3) == 20.0


STEPS = st.lists(
    st.tuples(st.sampled_from(["send", "say", "move", "answer", "release"]), st.integers(0, 9), st.integers(0, 25))
)


@given(STEPS)
def test_the_books_balance(steps: list[tuple[str, int, int]]) -> None:
    """Whatever happens in whatever order: nothing is negative, and with the last request nothing is left anywhere."""
    setup = Setup()
    tickets: dict[int, Ticket] = {}
    for now, (what, number, place) in enumerate(steps):
        instance = "ij"[number % 2]
        if what == "send" and number not in tickets:
            chain = list(range(20 if number % 3 else 12))
            tickets[number] = setup.send(chain, min(place, len(chain)), instance=instance, now=now)
        elif what == "say":
            setup.said(place, place // 2, instance=instance, now=now, span=1 + number % 3)
        elif number in tickets:
            ticket = tickets[number]
            if what == "move":
                ticket.move("j")
            elif what == "answer":
                ticket.answered()
            elif what == "release":
                ticket.release()
        assert all(min(load) >= 0 for load in setup.loads.snapshot("pool").values())
    for ticket in tickets.values():
        ticket.release()
    assert setup.loads.snapshot("pool") == {}
    assert len(setup.prefills) == 0
