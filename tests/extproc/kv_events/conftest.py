"""What tests of the event side share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from extproc.kv_events import block_tree


@pytest.fixture(scope="module")
def short_runs() -> Iterator[None]:
    """Runs so short that prompts have several."""
    length, block_tree.LENGTH = block_tree.LENGTH, 2
    yield
    block_tree.LENGTH = length
