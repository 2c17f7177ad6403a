"""A job arrives as it was sent, however it is cut on the way."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from extproc import config
from extproc.app.child_job import ChildJob, Role, receive
from extproc.app.options import Address, Options
from extproc.base.errors import ConfigError
from tests.support.envoy_yaml import clean, write

ANYWHERE = Address("127.0.0.1", 0)
OPTIONS = Options(ANYWHERE, ANYWHERE, ANYWHERE, "redis://127.0.0.1/0", 1, 1.0, follow=False)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    os.close(ends[0])


def job(directory: Path) -> ChildJob:
    return ChildJob(Role.SERVE, config.load(write(clean(), directory)), OPTIONS)


def test_all_settings_arrive(pipe: tuple[int, int], tmp_path: Path) -> None:
    """In pieces as in one; what follows in the pipe stays there."""
    sent = job(tmp_path)

    def write_slowly() -> None:
        data = sent.packed()
        for start in range(0, len(data), 300):
            os.write(pipe[1], data[start : start + 300])
            time.sleep(0.001)
        os.write(pipe[1], b"more")

    writer = threading.Thread(target=write_slowly)
    writer.start()
    assert receive(pipe[0]) == sent
    writer.join()
    assert os.read(pipe[0], 10) == b"more"
    os.close(pipe[1])


@pytest.mark.parametrize("data", [b"no pickle", pickle.dumps("no job"), b"\x80\x05cextproc.app.job\nGone\n."])
def test_code_that_was_replaced_meanwhile_is_told(pipe: tuple[int, int], data: bytes) -> None:
    """A child that is started from another version says what to do, whatever its parent sent."""
    os.write(pipe[1], len(data).to_bytes(8, "big") + data)
    os.close(pipe[1])
    with pytest.raises(ConfigError, match="restart it as a whole"):
        receive(pipe[0])


def test_another_version_is_refused(pipe: tuple[int, int], tmp_path: Path) -> None:
    """Even where it could be read: fields may mean something else."""
    os.write(pipe[1], replace(job(tmp_path), version="0.0.0").packed())
    os.close(pipe[1])
    with pytest.raises(ConfigError, match=r"version 0\.0\.0"):
        receive(pipe[0])


@pytest.mark.parametrize("size", [0, 3, 100])
def test_a_parent_that_is_gone_is_noticed(pipe: tuple[int, int], tmp_path: Path, size: int) -> None:
    """Before it said anything, or in the middle."""
    os.write(pipe[1], job(tmp_path).packed()[:size])
    os.close(pipe[1])
    with pytest.raises(EOFError):
        receive(pipe[0])
