"""Which instance announced which adapter, as both backends keep it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.index.announced_adapters import Adapters

NAMES = st.sampled_from("abcd")


@given(st.lists(st.tuples(st.sampled_from(["i1", "i2", "i3"]), st.sets(NAMES))))
def test_the_last_list_of_each_instance_counts(told: list[tuple[str, set[str]]]) -> None:
    """However the lists come: by adapter stands whoever has it in its last one, and nobody else."""
    adapters = Adapters()
    last: dict[str, set[str]] = {}
    for instance, names in told:
        adapters.tell(instance, names)
        last[instance] = names
    every = {name for names in last.values() for name in names}
    assert adapters.instances == {name: {i for i, names in last.items() if name in names} for name in every}
    assert adapters.announcers == {instance for instance, names in last.items() if names}
