"""The gateway of the simulation is the product's router: what it knows comes from events alone."""

from __future__ import annotations

from extproc.routing.pools.loads import PairTicket
from loadgen.simulation.instance import Removed, Stored
from loadgen.simulation.product_router import DECODER, POOL, ProductRouter
from loadgen.simulation.scenario import IndexView, Layout, Scenario

SIZE = 16
NAMES = ["a", "b", "c"]
CHAIN = list(range(10))


def gateway(**asked: object) -> ProductRouter:
    return ProductRouter(Scenario(**asked), NAMES, SIZE, blocks=100)  # type: ignore[arg-type]


def follow_up(subject: ProductRouter, now: float = 100.0) -> tuple[str, int]:
    """Where a second turn goes whose prompt is `CHAIN`, and how many of its tokens the router takes to be there."""
    choice = subject.route(1, 9 * SIZE, 10 * SIZE, CHAIN, now).choice
    return choice.computes.name, choice.hit * 10 * SIZE // choice.prompt


def test_a_follow_up_goes_where_its_history_is() -> None:
    """What an instance's step stored is found by the next decision."""
    subject = gateway()
    subject.learn("b", [Stored(CHAIN)], 0.0)
    assert follow_up(subject) == ("b", 10 * SIZE)


def test_what_was_evicted_is_gone() -> None:
    """An exact index forgets it; events apply in their order, so what is stored again is held."""
    subject = gateway()
    subject.learn("b", [Stored(CHAIN), Removed(CHAIN[::-1])], 0.0)
    assert follow_up(subject)[1] == 0
    subject = gateway()
    subject.learn("b", [Stored(CHAIN), Removed(CHAIN[:3:-1]), Stored(CHAIN[4:6])], 0.0)
    assert follow_up(subject) == ("b", 6 * SIZE)


def test_an_index_that_sees_no_evictions_keeps_everything() -> None:
    """The never-evicting view sends a follow-up after blocks that are gone."""
    subject = gateway(index=IndexView.NEVER_EVICTING)
    subject.learn("b", [Stored(CHAIN), Removed(CHAIN[::-1])], 0.0)
    assert follow_up(subject) == ("b", 10 * SIZE)


def test_a_routed_pool_learns_from_its_own_decisions() -> None:
    """Events are ignored; what was sent is remembered, longer than a speculation lasts."""
    subject = gateway(index=IndexView.ROUTED)
    subject.learn("b", [Stored(CHAIN)], 0.0)
    first = subject.route(0, 0, 10 * SIZE, CHAIN, 0.0).choice.computes.name
    assert follow_up(subject, now=60.0) == (first, 10 * SIZE)


def test_a_burst_finds_what_was_just_sent() -> None:
    """Before any event, the product's speculation leads a follow-up after its first turn; seconds later no more."""
    subject = gateway()
    first = subject.route(0, 0, 10 * SIZE, CHAIN, 0.0).choice.computes.name
    assert follow_up(subject, now=1.0) == (first, 10 * SIZE)
    assert follow_up(subject, now=60.0)[1] == 0


def test_a_prompt_of_less_than_a_block_is_routed() -> None:
    """Nothing to match is no reason not to choose."""
    assert gateway().route(0, 0, 5, [], 0.0).choice.computes.name in NAMES


def test_each_request_draws_new_bits() -> None:
    """The random policy reaches every instance, and equal seeds reach them in the same order."""
    orders = []
    for seed in (1, 1, 2):
        subject = gateway(policy="random", seed=seed)
        orders.append([subject.route(0, 0, 160, CHAIN, 0.0).choice.computes.name for _ in range(30)])
    assert set(orders[0]) == set(NAMES)
    assert orders[0] == orders[1] != orders[2]


def test_only_prefill_instances_compute_where_prefill_is_apart() -> None:
    """Disaggregated, one of them computes each prompt and the decoder answers; both hold load until released."""
    subject = gateway(layout=Layout.DISAGGREGATED)
    routed = subject.route(0, 0, 160, CHAIN, 0.0)
    assert routed.choice.computes.name in NAMES
    assert routed.choice.instance.name == DECODER
    loads = subject._router._loads
    assert sum(loads.view(POOL, NAMES)[1]) > 0
    assert isinstance(routed.ticket, PairTicket)
    routed.ticket.prefilled()
    assert sum(loads.view(POOL, NAMES)[1]) == 0
    routed.ticket.release()
    assert loads.view(POOL, [*NAMES, DECODER]) == ([0] * 4, [0] * 4)
