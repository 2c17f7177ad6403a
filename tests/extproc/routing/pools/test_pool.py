"""Which instances of a pool may be chosen at the moment."""

from __future__ import annotations

from extproc.base.model import Instance
from extproc.prompts.renderer import PlainRenderer
from extproc.routing.pools.ejections import EJECTION_S
from extproc.routing.pools.pool import Pool


def pool(count: int) -> Pool:
    return Pool("pool", PlainRenderer(), instances=[Instance(f"10.0.0.{i}:8000") for i in range(count)])


def test_a_dead_instance_is_ejected_for_a_while() -> None:
    """Where Envoy had to go elsewhere, the chosen instance is no candidate until its time is over."""
    two = pool(2)
    chosen, other = two.instances
    assert not two.reached(chosen, other.address, now=0.0)
    assert two.candidates(EJECTION_S / 2) == [other]
    assert list(two.candidates(EJECTION_S)) == [chosen, other]
    assert not two.reached(chosen, other.address, now=10.0)
    assert two.reached(chosen, chosen.address, now=10.0)
    assert list(two.candidates(10.0)) == [chosen, other]


def test_the_lowest_priority_that_can_serves() -> None:
    """A failover level is for when no host of the level before it is healthy and not ejected."""
    first, second, spare, last = (
        Instance(f"10.0.0.{number}:8000", priority=priority) for number, priority in enumerate((0, 0, 1, 2))
    )
    four = Pool("pool", PlainRenderer(), instances=[last, spare, first, second], unhealthy=set())
    assert list(four.candidates(0.0)) == [first, second]
    assert list(four.standby([first, second], 0.0)) == [spare, last]
    assert list(four.standby([last], 0.0)) == []
    four.unhealthy = {first.address}
    assert list(four.candidates(0.0)) == [second]
    four.ejections.unreachable(second.address, 0.0)
    assert list(four.candidates(0.1)) == [spare]
    four.unhealthy = {first.address, spare.address}
    assert list(four.candidates(0.1)) == [last]
    four.unhealthy = {instance.address for instance in four.instances}
    assert list(four.candidates(EJECTION_S)) == [first, second]


def test_where_all_are_ejected_all_are_tried() -> None:
    """A router that can reach nobody still sends the request."""
    two = pool(2)
    for instance in two.instances:
        two.reached(instance, "10.9.9.9:1", now=0.0)
    assert list(two.candidates(1.0)) == list(two.instances)


def test_who_fails_health_checks_is_no_candidate() -> None:
    """Unless all of them do, as in Envoy's panic routing."""
    two = pool(2)
    two.unhealthy = {two.instances[0].address}
    assert two.candidates(0.0) == [two.instances[1]]
    two.unhealthy = {instance.address for instance in two.instances}
    assert list(two.candidates(0.0)) == list(two.instances)
