"""Who got least lately: clients in step with a round robin, accounts of each kind, and newcomers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.routing.policies import View, lowest
from extproc.routing.pools.ties import MOST, WINDOW, Kind, Ties


class Pool:
    """Idle instances, asked one request after the other: nothing but ties decides."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.names = [f"10.0.0.{i}:8000" for i in range(count)]
        self.ties = Ties()
        self._seeds = random.Random(seed)

    def send(self, kind: Kind, size: int) -> str:
        idle = [0] * len(self.names)
        seed = self._seeds.getrandbits(64)
        view = View(0, 0, size, idle, idle, 0, idle, seed, self.ties.shares(kind, self.names))
        name = self.names[lowest(view.loads, view)]
        self.ties.note(kind, name, size)
        return name


@given(st.integers(2, 6), st.lists(st.sampled_from([0, 300, 40_000]), max_size=5), st.integers(0, 2**32))
def test_other_requests_move_no_first_turn(count: int, between: Sequence[int], seed: int) -> None:
    """Whatever a client sends before each first turn, the first turns of one length go round exactly."""
    pool = Pool(count, seed)
    for _ in range(5):
        round_of = set()
        for _ in range(count):
            for size in between:
                pool.send(Kind.OTHER, size)
            round_of.add(pool.send(Kind.FIRST, 40_000))
        assert round_of == set(pool.names)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("sizes", [(300, 40_000), (300, 300, 40_000), (40_000, 40_010), (1_000, 1_010, 1_020, 1_030)])
def test_no_period_of_first_turns_falls_into_step(sizes: Sequence[int], count: int) -> None:
    """Short and long first turns that alternate, or two kinds of about one length: each kind is spread."""
    pool = Pool(count)
    where = [Counter(dict.fromkeys(pool.names, 0)) for _ in sizes]
    for _ in range(200):
        for position, size in enumerate(sizes):
            where[position][pool.send(Kind.FIRST, size)] += 1
    fair = 200 / count
    assert all(fair / 2 < times < 1.6 * fair for position in where for times in position.values()), where


def test_a_long_prompt_weighs_more() -> None:
    """After a prompt of a hundred usual ones its instance waits, though not until the others had as many bytes."""
    pool = Pool(2)
    large = pool.send(Kind.FIRST, 4_000_000)
    after = [pool.send(Kind.FIRST, 40_000) for _ in range(60)]
    assert large not in after[:4]
    assert large in after


def test_an_instance_that_joins_gets_its_share_and_no_more() -> None:
    """It counts as the one that got least, not as one that got nothing for as long as the others remember."""
    pool = Pool(2)
    for _ in range(int(4 * WINDOW)):
        pool.send(Kind.FIRST, 1_000)
    pool.names.append("10.0.0.9:8000")
    got = Counter(pool.send(Kind.FIRST, 1_000) for _ in range(30))
    assert all(5 <= times <= 15 for times in got.values()), got
    assert len(got) == 3


def test_an_instance_that_joins_is_not_compared_with_one_that_left() -> None:
    """As in every rolling restart: what is left of the account of a pod that is gone says nothing of the pool."""
    pool = Pool(3)
    for _ in range(100):
        pool.send(Kind.FIRST, 1_000)
    pool.names.pop()
    for _ in range(100):
        pool.send(Kind.FIRST, 1_000)
    pool.names.append("10.0.0.9:8000")
    got = Counter(pool.send(Kind.FIRST, 1_000) for _ in range(18))
    assert all(3 <= got[name] <= 9 for name in pool.names), got


def test_accounts_are_bounded_in_time() -> None:
    """An instance that is gone is forgotten, and what was long ago weighs nothing."""
    pool = Pool(2)
    gone = pool.names[0]
    pool.send(Kind.FIRST, 1_000)
    pool.send(Kind.FIRST, 1_000)
    pool.names = ["10.0.0.7:8000", "10.0.0.8:8000"]
    for _ in range(2_000):
        pool.send(Kind.FIRST, 1_000)
    assert gone not in pool.ties._accounts[Kind.FIRST]
    assert max(pool.ties.shares(Kind.FIRST, pool.names)) <= 2 * (WINDOW + 1)


def test_accounts_are_bounded_in_instances() -> None:
    """Pods whose names are never seen twice: nothing of them stays."""
    ties = Ties()
    for number in range(3 * MOST // 100):
        ties.shares(Kind.FIRST, [f"10.0.{number}.{i}:8000" for i in range(100)])
    assert len(ties._accounts[Kind.FIRST]) <= MOST


def test_a_copy_moves_nothing() -> None:
    """What is explained is not done."""
    pool = Pool(2)
    pool.send(Kind.FIRST, 1_000)
    before = list(pool.ties.shares(Kind.FIRST, pool.names))
    pool.ties.copy().note(Kind.FIRST, pool.names[1], 10**9)
    assert list(pool.ties.shares(Kind.FIRST, pool.names)) == before
