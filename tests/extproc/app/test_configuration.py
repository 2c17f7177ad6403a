"""An Envoy YAML that is edited while it is in use: what is right is taken over, what is wrong is said and left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from extproc import config
from extproc.app import configuration
from extproc.app.configuration import Changes, Configuration
from extproc.base import metrics
from extproc.base.errors import ConfigError
from extproc.config import Settings
from tests.support import envoy_yaml
from tests.support.agents import until


def edited(directory: Path, name: str) -> Path:
    """The shipped configuration with another name of the engines' model directory."""
    tree = envoy_yaml.clean()
    (cluster,) = (one for one in tree["static_resources"]["clusters"] if one["name"] == "engines")
    cluster["metadata"]["filter_metadata"]["smetric"]["models"] = [name]
    return envoy_yaml.write(tree, directory)


def models(settings: Settings) -> frozenset[str]:
    return settings.pools["engines"].models


class Rig:
    """A configuration, what this process took over of it, and what its children were told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changes = Changes()
        self.configuration = Configuration(config.load(path), self.changes)
        self.taken: list[frozenset[str]] = []
        self.told: list[Settings] = []
        self.fails: Exception | None = None

    async def change(self, settings: Settings) -> None:
        if self.fails is not None:
            raise self.fails
        self.taken.append(models(settings))


@asynccontextmanager
async def running(path: Path, monkeypatch: pytest.MonkeyPatch, *, watch: bool) -> AsyncIterator[Rig]:
    monkeypatch.setattr(configuration, "LOOK_S", 0.02)
    rig = Rig(path)
    tasks = [
        asyncio.create_task(rig.changes.obey(rig.change)),
        asyncio.create_task(rig.configuration.run(watch=watch)),
    ]
    try:
        with rig.configuration.told(rig.told.append):
            yield rig
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def outcomes(outcome: str) -> float:
    return metrics.REGISTRY.get_sample_value("smetric_reloads_total", {"outcome": outcome}) or 0.0


async def test_what_is_right_is_taken_over_and_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here first, then in the children; `/debug/state` says since when."""
    before = outcomes("applied")
    async with running(edited(tmp_path, "one"), monkeypatch, watch=False) as rig:
        edited(tmp_path, "two")
        rig.configuration.hurry()
        await until(lambda: len(rig.told) == 1, 20)
        assert rig.taken == [frozenset({"two"})]
        assert models(rig.told[0]) == {"two"}
        assert rig.configuration.settings is rig.told[0]
        assert outcomes("applied") == before + 1
        assert "refused" not in rig.configuration.shown()


async def test_what_is_wrong_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is shown until a right edit comes, in the log, `/debug/state` and a metric."""
    async with running(edited(tmp_path, "one"), monkeypatch, watch=False) as rig:
        text = rig.path.read_text()
        rig.path.write_text(text[: len(text) // 2])
        rig.configuration.hurry()
        await until(lambda: "refused" in rig.configuration.shown(), 20)
        assert (rig.taken, rig.told) == ([], [])
        assert models(rig.configuration.settings) == {"one"}
        assert metrics.REGISTRY.get_sample_value("smetric_reload_refused") == 1
        rig.path.unlink()
        rig.configuration.hurry()
        await until(lambda: "No such file" in str(rig.configuration.shown()["refused"]), 20)
        edited(tmp_path, "two")
        rig.configuration.hurry()
        await until(lambda: rig.taken == [frozenset({"two"})], 20)
        assert "refused" not in rig.configuration.shown()
        assert metrics.REGISTRY.get_sample_value("smetric_reload_refused") == 0


@pytest.mark.parametrize("failure", [ConfigError("the template is damaged"), ValueError("a bug")])
async def test_what_cannot_be_taken_over_reaches_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """All processes decide alike; and the next edit is looked at."""
    async with running(edited(tmp_path, "one"), monkeypatch, watch=False) as rig:
        rig.fails = failure
        rig.configuration.hurry()
        await until(lambda: "refused" in rig.configuration.shown(), 20)
        assert rig.told == []
        rig.fails = None
        rig.configuration.hurry()
        await until(lambda: len(rig.told) == 1, 20)


async def test_a_changed_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --watch, however it changes: written in place, replaced, or behind a link that is moved, as Kubernetes does.
    An edit that is wrong is refused once, and not at each look."""
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        edited(tmp_path / name, name)
    link = tmp_path / "data"
    link.symlink_to(tmp_path / "one")
    path = link / edited(tmp_path / "one", "one").name
    before = outcomes("refused")
    async with running(path, monkeypatch, watch=True) as rig:
        new = tmp_path / "new"
        new.symlink_to(tmp_path / "two")
        new.replace(link)
        await until(lambda: rig.taken == [frozenset({"two"})], 20)
        path.write_text("static_resources: [")
        await until(lambda: "refused" in rig.configuration.shown(), 20)
        await asyncio.sleep(0.3)
        assert outcomes("refused") == before + 1
        (tmp_path / "three" / path.name).replace(tmp_path / "two" / path.name)
        await until(lambda: rig.taken == [frozenset({"two"}), frozenset({"three"})], 20)


async def test_a_file_is_not_watched_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit waits for SIGHUP."""
    async with running(edited(tmp_path, "one"), monkeypatch, watch=False) as rig:
        edited(tmp_path, "two")
        await asyncio.sleep(0.3)
        assert rig.taken == []
