"""Which instances a hint admits, however its endpoints are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.base.model import Instance
from extproc.routing.pools.admission import Subset

POOL = [Instance(address) for address in ("10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "[fd00::1]:8000")]


def admitted(*written: str) -> list[str]:
    return [instance.address for instance in Subset(written).of(POOL)]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["10.0.0.1:8000"], ["10.0.0.1:8000"]),
        (["10.0.0.1"], ["10.0.0.1:8000", "10.0.0.1:8001"]),
        (["10.0.0.1:9999"], []),
        (["10.0.0.2:8000,10.0.0.1:8001"], ["10.0.0.1:8001", "10.0.0.2:8000"]),
        ([" 10.0.0.2:8000 , ", ""], ["10.0.0.2:8000"]),
        (["[fd00::1]:8000"], ["[fd00::1]:8000"]),
        (["[fd00::1]"], ["[fd00::1]:8000"]),
        (["fd00::1"], ["[fd00::1]:8000"]),
        (["[FD00:0::0:1]:08000"], ["[fd00::1]:8000"]),
    ],
)
def test_endpoints_in_every_spelling(written: list[str], expected: list[str]) -> None:
    """An address alone means all its ports; the pool's order is kept."""
    assert admitted(*written) == expected


@pytest.mark.parametrize(
    "written",
    [
        "",
        ",",
        "10.0.0.1:",
        "10.0.0.1:x",
        "10.0.0.1:-1",
        "10.0.0.1:٨",
        "[fd00::1",
        "[fd00::1]8000",
        "[fd00::1]:",
        "vllm-0",
    ],
)
def test_what_is_no_endpoint_admits_nobody(written: str) -> None:
    """A hint that cannot be read is an empty one: its writer wanted the request nowhere else."""
    assert admitted(written) == []


def test_an_unresolved_instance_is_in_no_subset() -> None:
    """Hints name addresses."""
    assert Subset(["vllm-0:8000"]).of([Instance("vllm-0:8000")]) == []


def test_subsets_of_the_same_endpoints_are_equal() -> None:
    """Order and repetition mean nothing."""
    assert Subset(["10.0.0.1:1", "10.0.0.2"]) == Subset(["10.0.0.2,10.0.0.1:1,10.0.0.2"])
    assert Subset(["10.0.0.1:1"]) != Subset(["10.0.0.1"])
    assert len({Subset(["10.0.0.1"]), Subset(["10.0.0.1"])}) == 1


@given(st.lists(st.text(alphabet="0123456789abcdef:.,[]% \x00٨", max_size=30) | st.text(max_size=30), max_size=5))
def test_nothing_that_a_hint_may_hold_raises(written: list[str]) -> None:
    """Hints can be made of clients' headers: any text is read, and admits members of the pool only."""
    assert set(admitted(*written)) <= {instance.address for instance in POOL}
