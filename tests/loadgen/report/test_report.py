"""The report shows what runs and sweeps say: all of it, each setting by itself, the same bytes every time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from loadgen.cli import main
from loadgen.report.figures import draw
from loadgen.report.figures.style import looks
from loadgen.report.material import MOST, Group, Material
from loadgen.report.reading import Unreadable, read
from loadgen.report.tables import as_json, as_markdown, tables
from loadgen.results.measures import measure
from loadgen.results.records import ROWS, RUN, read_info
from loadgen.simulation.scenario import Fetch, Scenario
from loadgen.simulation.sweeps.sweep import FILE, Result, key
from tests.support.made_runs import info, rows, scenario, write_run, write_sweep

KINDS = {"tps-rate", "tps-provisioning", "margin", "reuse", "imbalance", "heatmap", "latency", "stickiness"}


def group(path: Path) -> Group:
    """The only group of what is at a path."""
    (only,) = read([path]).groups
    return only


def names(of: Group) -> list[str]:
    """Of the figures that are drawn."""
    return [drawn.name for drawn in draw(of)[0]]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a sweep over everything, with the rows of two of its simulations."""
    out = tmp_path_factory.mktemp("full")
    sweep = [
        scenario(policy, rate=rate, global_ratio=ratio, seed=seed)
        for policy in ("smetric", "bailian")
        for rate in (1.0, 2.0)
        for ratio in (0.0, 4.6)
        for seed in (0, 1)
    ]
    sweep += [scenario(options={"overload": value}, rate=2.0, seed=seed) for value in (1.0, 1e9) for seed in (0, 1)]
    write_sweep(out / "sweep", sweep)
    for policy in ("smetric", "bailian"):
        write_run(out / "runs" / policy, policy, minutes=3)
    assert main(["report", str(out / "sweep"), str(out / "runs"), "--out", str(out / "report")]) == 0
    return out


def test_every_kind_of_figure_is_drawn_as_png_and_svg(full: Path) -> None:
    """One command gives the paper's figures: rates, provisioning, reuse, heatmap, imbalance, tails, stickiness."""
    files = sorted((full / "report" / "figures").iterdir())
    assert {file.stem for file in files} == KINDS | {"sensitivity-smetric-overload"}
    for file in files:
        if file.suffix == ".svg":
            assert ElementTree.fromstring(file.read_text()).tag.endswith("svg")
        else:
            assert file.read_bytes().startswith(b"\x89PNG")


def test_the_page_needs_nothing_else(full: Path) -> None:
    """Every figure is inside the page and every table too; nothing is loaded from anywhere."""
    page = (full / "report" / "report.html").read_text()
    images = re.findall(r'<img [^>]*src="([^"]*)"', page)
    assert len(images) == len(KINDS) + 1
    assert all(image.startswith("data:image/svg+xml;base64,") for image in images)
    assert not re.search(r"<(script|link|iframe)", page)
    for table in tables(group(full / "sweep")):
        assert table.title in page


def test_the_same_input_gives_the_same_bytes(full: Path) -> None:
    """A second report differs in nothing, so that figures can be kept under version control."""
    assert main(["report", str(full / "sweep"), str(full / "runs"), "--out", str(full / "again")]) == 0
    for first in (full / "report").rglob("*.*"):
        assert first.read_bytes() == (full / "again" / first.relative_to(full / "report")).read_bytes(), first.name


def test_the_tables_hold_the_measures(full: Path) -> None:
    """A number in tables.json is the mean over seeds of what `measure` says of the rows."""
    results = json.loads((full / "report" / "tables.json").read_text())["groups"][0]["results"]
    (found,) = [r for r in results if (r["policy"], r["global_ratio"], r["rate"]) == ("bailian", 0.0, 1.0)]
    runs = [info("bailian", seed, rate=1.0, minutes=3) for seed in (0, 1)]
    expected = [measure(rows(run), run).tps_slo for run in runs]
    assert found["seeds"] == [0, 1]
    assert found["measures"]["tps_slo"]["mean"] == pytest.approx(sum(expected) / 2)
    assert found["measures"]["ttft.p99"]["n"] == 2


def test_a_simulation_that_kept_its_rows_counts_once(full: Path) -> None:
    """The sweep's line and the run's directory are the same simulation; the one with rows is taken."""
    for paths in ([full / "sweep", full / "runs"], [full / "runs", full / "sweep"]):
        both = read(paths)
        assert len(both.groups) == 1
        assert len(both.groups[0].points) == len(group(full / "sweep").points)
        assert sum(point.trail is not None for point in both.groups[0].points) == 2


def test_runs_alone_give_what_rows_can_tell(tmp_path: Path) -> None:
    """Two runs side by side have heatmaps and distributions, and the page says what a sweep would add."""
    for policy in ("smetric", "bailian"):
        write_run(tmp_path / policy, policy)
    drawn, needs = draw(group(tmp_path))
    assert {one.name for one in drawn} == {"tps", "reuse", "imbalance", "heatmap", "latency", "stickiness"}
    assert any("sweep --rate" in need for need in needs)


def test_the_peak_is_compared_over_the_same_seeds(tmp_path: Path) -> None:
    """The difference of a policy to the first is the mean of the seeds' own differences."""
    scenarios = [scenario(policy, seed=seed) for policy in ("smetric", "bailian") for seed in (0, 1, 2)]
    write_sweep(tmp_path, scenarios)
    peaks = next(iter(tables(group(tmp_path))))
    (row,) = [row for row in peaks.rows if row[0] == "bailian"]
    each = []
    for seed in (0, 1, 2):
        ours, theirs = (info(policy, seed, minutes=3) for policy in ("smetric", "bailian"))
        each.append(measure(rows(theirs), theirs).tps_slo / measure(rows(ours), ours).tps_slo - 1)
    assert row[-1].startswith(f"{sum(each) / 3:+.1%} ± ")


def test_settings_are_never_mixed(tmp_path: Path) -> None:
    """Another workload or another machine is another part of the report, and the reader is told."""
    write_sweep(tmp_path / "a", [scenario(), scenario(fetch=Fetch.ASYNC)])
    write_run(tmp_path / "b", "smetric", workload="chat")
    material = read([tmp_path])
    assert [one.title for one in material.groups] == [
        "paper-trace-1, 8 instances, 30b-h20",
        "paper-trace-1, 8 instances, 30b-h20, fetch async",
        "chat, 8 instances, 30b-h20",
    ]
    assert "cannot be compared" in material.notes[0]
    assert [len(one.points) for one in material.groups] == [1, 1, 1]


def test_an_interrupted_run_is_used_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What an interruption left is shown with a warning; half a last line is left out and named by its number."""
    write_run(tmp_path / "r", "smetric")
    run = read_info(tmp_path / "r")
    run.complete = False
    (tmp_path / "r" / RUN).write_bytes(msgspec.json.encode(run))
    text = (tmp_path / "r" / ROWS).read_bytes()
    (tmp_path / "r" / ROWS).write_bytes(text[: len(text) // 2].rpartition(b"\n")[0] + b'\n{"request":"r9')
    assert main(["report", str(tmp_path / "r"), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert "the run was interrupted or still goes on" in said
    number = (tmp_path / "r" / ROWS).read_bytes().count(b"\n") + 1
    assert f"{ROWS}:{number}: the last line was cut off" in said
    assert "interrupted" in (tmp_path / "out" / "report.html").read_text()


def test_a_killed_replay_is_measured_until_its_last_row(tmp_path: Path) -> None:
    """A replay's window is empty until it ends: without an end, the last row is it."""
    run = info("smetric", kind="replay", settings={}, window=(60.0, 60.0))
    write_run(tmp_path, "smetric", kind="replay", settings={})
    (tmp_path / RUN).write_bytes(msgspec.json.encode(run))
    (point,) = group(tmp_path).points
    assert point.measures.requests > 0


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"x: neither run.json .* nor sweep.jsonl"),
        ({RUN: "{"}, r"x/run.json: not the description of a run"),
        ({RUN: '{"kind": 1}'}, r"run.json: not the description of a run: Expected `str`, got `int` - at `\$.kind`"),
        ({RUN: None}, r"x/requests.jsonl: No such file"),
        ({RUN: None, ROWS: '{"request": "a"}\n'}, r"requests.jsonl:1: not a row of a run: .*session"),
        ({FILE: '{"key": "a"}\n'}, r"sweep.jsonl:1: .*scenario"),
        ({FILE: ""}, "no finished simulation"),
    ],
)
def test_what_cannot_be_read_is_said(
    tmp_path: Path, files: dict[str, str | None], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """File, line and field of what is wrong, exit code 1, and no traceback."""
    (tmp_path / "x").mkdir()
    for name, text in files.items():
        content = msgspec.json.encode(info("smetric")) if text is None else text.encode()
        (tmp_path / "x" / name).write_bytes(content)
    assert main(["report", str(tmp_path / "x"), "--out", str(tmp_path / "out")]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    """A wrong name is not an empty report."""
    with pytest.raises(Unreadable, match="no such file or directory"):
        read([tmp_path / "nothing"])


def test_failed_simulations_are_counted(tmp_path: Path) -> None:
    """A simulation that failed is in no mean, and the reader is told how many and why."""
    write_sweep(tmp_path, [scenario()])
    failed = Result(key=key(scenario(seed=1)), scenario=scenario(seed=1), error="capacity is smaller than a prompt")
    with (tmp_path / FILE).open("ab") as file:
        file.write(msgspec.json.encode(failed) + b"\n")
    material = read([tmp_path])
    assert len(material.groups[0].points) == 1
    assert "1 of 2 simulations failed, the first with: capacity is smaller than a prompt" in material.notes[0]


def test_a_policy_that_is_gone_is_shown(tmp_path: Path) -> None:
    """A sweep outlives a policy: its results are shown under its name, with the options it was given."""
    gone = scenario("no-longer-there", {"depth": 2.0})
    write_sweep(tmp_path / "s", [scenario(), gone])
    assert main(["report", str(tmp_path / "s"), "--out", str(tmp_path / "out")]) == 0
    assert "no-longer-there depth=2" in (tmp_path / "out" / "tables.md").read_text()


def test_results_of_an_edited_trace_are_not_mixed(tmp_path: Path) -> None:
    """Of a trace that was edited between two sweeps, the last content's results are shown, and the rest is said."""
    asked = [scenario(workload="trace.jsonl", seed=seed) for seed in (0, 1)]
    write_sweep(tmp_path, asked)
    line = msgspec.json.decode((tmp_path / FILE).read_bytes().splitlines()[0], type=Result)
    later = msgspec.structs.replace(line, key=key(line.scenario, "0" * 16), content="0" * 16)
    with (tmp_path / FILE).open("ab") as file:
        file.write(msgspec.json.encode(later) + b"\n")
    material = read([tmp_path])
    assert [point.seed for point in material.groups[0].points] == [0]
    assert "2 simulations of an earlier content of trace.jsonl are left out" in material.notes[0]


def test_too_many_curves_leave_each_policys_best(tmp_path: Path) -> None:
    """A figure has no more curves than one can tell apart; the tables have all."""
    options: list[dict[str, float]] = [{"weight": 0.1 * number} for number in range(1, MOST + 1)]
    write_sweep(tmp_path, [scenario("bailian", given) for given in options] + [scenario("smetric")])
    of = group(tmp_path)
    assert len(of.policies) == MOST + 1
    assert len(of.shown) == 2
    best = max((p for p in of.points if p.policy == "bailian"), key=lambda point: point.measures.tps_slo)
    assert of.shown == {"smetric", best.label}
    assert set(of.main.curves) == of.shown
    assert all(label in as_markdown(Material([of])) for label in of.policies)


def test_a_policy_keeps_its_colour(tmp_path: Path) -> None:
    """Whatever else is in a figure, a policy looks the same; two labels of one policy differ in the line alone."""
    write_sweep(tmp_path / "a", [scenario("bailian"), scenario("smetric"), scenario("smetric", {"overload": 3.0})])
    write_sweep(tmp_path / "b", [scenario("bailian")])
    many, one = looks(group(tmp_path / "a")), looks(group(tmp_path / "b"))
    assert one["bailian"] == many["bailian"]
    plain, other = many["smetric"], many["smetric overload=3"]
    assert (plain.color, plain.marker) == (other.color, other.marker)
    assert plain.line != other.line
    assert plain.color != one["bailian"].color


def test_an_option_is_varied_alone(tmp_path: Path) -> None:
    """The curve of an option has the default's point, and none where another option was changed as well."""
    sweep = [scenario(options=given) for given in ({}, {"overload": 1.0}, {"overload": 1e9})]
    sweep.append(scenario(options={"overload": 3.0, "hit_ratio": 0.25}))
    write_sweep(tmp_path, sweep)
    (drawn,) = [one for one in draw(group(tmp_path))[0] if one.name.startswith("sensitivity")]
    assert drawn.name == "sensitivity-smetric-overload"
    for ax in drawn.figure.axes:
        assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1", "2", "∞"]


def test_peers_that_tell_little_are_shown_all_the_same(tmp_path: Path) -> None:
    """Rows without instance and hits give latencies and tokens; the tables have dashes, and no figure is empty."""
    write_run(tmp_path, "smg", kind="replay", settings={})
    decoded = [msgspec.json.decode(line) for line in (tmp_path / ROWS).read_bytes().splitlines()]
    for row in decoded:
        row.update(local=None, fetched=None, instance=None, reason=None)
    (tmp_path / ROWS).write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in decoded))
    of = group(tmp_path)
    assert names(of) == ["tps", "latency"]
    work = next(table for table in tables(of) if table.title.startswith("Work"))
    assert dict(zip(work.header, work.rows[0], strict=True))["local hits"] == "-"
    assert as_json(Material([of]))["groups"][0]["setting"]["kind"] == "replay"


def test_the_defaults_of_scenarios_and_runs_agree(tmp_path: Path) -> None:
    """A run whose settings spell out a scenario's fields belongs to the same group as the sweep's line."""
    one = Scenario(rate=2.0, instances=8)
    write_sweep(tmp_path / "s", [one])
    settings = {"model": one.model, "fetch": one.fetch.value, "slo_tpot_s": one.slo.tpot_s, "global_ratio": 4.6}
    write_run(tmp_path / "r", "bailian", settings=settings)
    assert len(read([tmp_path]).groups) == 1


@pytest.mark.parametrize("more", [{}, {"overload": 3.0}])
def test_margins_are_over_rates_that_both_have(tmp_path: Path, more: dict[str, float]) -> None:
    """Options tried at one rate are compared there, not with another policy's best at a rate that they never saw."""
    slow = [scenario(options=given, rate=1.0) for given in ({}, {"overload": 3.0})]
    write_sweep(tmp_path, [*slow, scenario(options=more, rate=4.0)])
    of = group(tmp_path)
    (row,) = [row for row in next(iter(tables(of))).rows if row[0] == "smetric overload=3"]
    low, other = (
        next(p.measures.tps_slo for p in of.points if (p.label, p.rate) == (label, 1.0)) for label in of.policies
    )
    assert row[-1] == f"{other / low - 1:+.1%} (noise)"  # one pair


def test_numbers_are_settings_by_their_value(tmp_path: Path) -> None:
    """A bandwidth of 4 and one of 4.0 are one setting."""
    write_sweep(tmp_path, [scenario(fetch_gbps=4), scenario(fetch_gbps=4.0, seed=1)])
    assert len(group(tmp_path).points) == 2


def test_single_points_of_an_option_stay_out_of_curves(tmp_path: Path) -> None:
    """What was tried at one rate for a sensitivity is no curve beside those of all rates; an option swept fully is."""
    fully = [scenario(options=given, rate=rate) for given in ({}, {"hit_ratio": 0.25}) for rate in (1.0, 2.0)]
    write_sweep(tmp_path, [*fully, scenario(options={"overload": 3.0}, rate=1.0)])
    of = group(tmp_path)
    assert of.shown == {"smetric", "smetric hit_ratio=0.25"}
    assert "sensitivity-smetric-overload" in names(of)
