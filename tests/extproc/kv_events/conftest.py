"""What tests of the event side share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from extproc.base import blocks
from extproc.kv_events import block_tree
from extproc.kv_events.follower import Follower
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from tests.support import paths
from tests.support.following import POOL, FailingIndex
from tests.support.kv_publisher import Publisher


@pytest.fixture(scope="module")
def short_runs() -> Iterator[None]:
    """Runs so short that prompts have several."""
    length, block_tree.LENGTH = block_tree.LENGTH, 2
    yield
    block_tree.LENGTH = length


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.load(paths.MODEL)


@pytest.fixture
def index() -> FailingIndex:
    return FailingIndex()


@pytest.fixture
async def follower(vocabulary: Vocabulary, index: FailingIndex) -> AsyncIterator[Follower]:
    follower = Follower(POOL, vocabulary, blocks.DEFAULT_SIZE, index)
    yield follower
    await follower.close()


@pytest.fixture
def publishers() -> Iterator[Callable[..., Publisher]]:
    """Makes publishers, and closes them."""
    made: list[Publisher] = []

    def make(*args: Any, **options: Any) -> Publisher:
        made.append(Publisher(*args, **options))
        return made[-1]

    yield make
    for publisher in made:
        publisher.close()
