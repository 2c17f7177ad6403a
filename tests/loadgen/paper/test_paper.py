"""The reproduction: what is simulated, how findings are judged, and that the document says what the results say."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import msgspec
import pytest

from loadgen import cli
from loadgen.paper import colocated, document, findings, grid, workload
from loadgen.paper.evidence import Evidence
from loadgen.paper.findings import Verdict
from loadgen.paper.settings import FULL, QUICK
from loadgen.results.intervals import Interval
from loadgen.results.measures import Measures, Quantiles
from loadgen.simulation.scenario import Layout, Scenario
from loadgen.simulation.sweeps import sweep

PLAN = replace(QUICK, seeds=(0, 1, 2))
CHOSEN = {"bailian": {"weight": 0.5}, "lmetric": {"idle": 1.0}}
# TPS within SLO relative to SMetric's, at equal rate and provisioning
WORTH = {"smetric": 1.0, "smetric-basic": 0.95, "bailian": 0.9, "lmetric": 0.85, "least-loaded": 0.88, "dynamo": 0.5}
IMBALANCE = {"least-loaded": 2.0, "smetric": 2.6, "bailian": 3.0, "lmetric": 3.2, "dynamo": 4.6, "smetric-basic": 2.8}


def quantiles(value: float) -> Quantiles:
    """A distribution around a value."""
    return Quantiles(value, value * 2, value * 5, value * 8, value * 20, value * 30, value * 2)


def measures(scenario: Scenario) -> Measures:
    """A made-up simulation: SMetric 11 % above Bailian, least loaded collapses without a store, knee at 1.75."""
    setting = next(s for s in PLAN.settings if (s.base.layout, s.base.model) == (scenario.layout, scenario.model))
    factor = scenario.rate / setting.unit
    tps = 1000.0 * min(factor, 3.5 - factor) * WORTH[scenario.policy] * (1 + 0.01 * (scenario.seed % 5))
    chosen = CHOSEN.get(scenario.policy)
    if chosen is not None and scenario.options != chosen:
        tps *= 0.8
    if scenario.policy == "least-loaded" and scenario.global_ratio == 0:
        tps *= 0.3
    worse = 1 / WORTH[scenario.policy]
    return Measures(
        requests=100,
        failed=0,
        requests_per_s=scenario.rate,
        tps_slo=tps,
        tps_slo_all=tps * 100,
        tps=tps,
        slo_share=0.9,
        local=0.64,
        fetched=0.1,
        reuse=0.74,
        sticky_first=0.04 if scenario.policy == "least-loaded" else 0.966,
        sticky_before=0.9,
        imbalance=IMBALANCE[scenario.policy],
        imbalance_computed=2.0,
        imbalance_30s=quantiles(1.5 * worse),
        ttft=quantiles(1.1 * worse),
        tpot=quantiles(0.02 * worse),
        reasons={},
        per_instance={"i00": 100},
    )


def result(scenario: Scenario) -> sweep.Result:
    """As a sweep has it."""
    return sweep.Result(key=sweep.key(scenario), scenario=scenario, measures=asdict(measures(scenario)), wall_s=1.0)


@cache
def results() -> tuple[sweep.Result, ...]:
    """All of the plan."""
    tuning = [result(scenario) for scenario in grid.tuning(PLAN)]
    chosen = grid.tuned(PLAN, {one.key: one for one in tuning})
    return (*tuning, *(result(scenario) for scenario in grid.judged(PLAN, chosen)))


def test_the_plan_fits_its_time() -> None:
    """In full about a thousand simulations on at least five seeds, none of them twice; tuning has seeds of its own."""
    chosen = grid.tuned(FULL, {})
    asked = [*grid.tuning(FULL), *grid.judged(FULL, chosen)]
    assert len({sweep.key(scenario) for scenario in asked}) == len(asked) < 1200
    assert len(FULL.seeds) >= 5
    assert not set(FULL.seeds) & set(FULL.tuning_seeds)
    assert {scenario.measure_s for scenario in asked} == {FULL.measure_s, FULL.start_s}
    quick = [*grid.tuning(QUICK), *grid.judged(QUICK, chosen)]
    assert len(quick) < 200


def test_seeds_come_one_after_the_other() -> None:
    """What an interrupted reproduction has are whole tables of fewer seeds."""
    seeds = [scenario.seed for scenario in grid.judged(FULL, grid.tuned(FULL, {}))]
    assert seeds == sorted(seeds)


def test_baselines_are_tuned_to_their_best() -> None:
    """The candidate with the most tokens within the service level is taken, where only prefill counts by prompts."""
    chosen = grid.tuned(PLAN, {one.key: one for one in results()})
    assert {policy: options for (_, _, policy), options in chosen.items() if policy in CHOSEN} == CHOSEN
    assert {setting for setting, _, _ in chosen} == {"colocated", "large", "disaggregated"}
    setting = PLAN.setting("disaggregated")
    one = grid.timed(PLAN, setting.scenario(4.6, setting.tuned_at[4.6], 100, "bailian", {"weight": 0.3}))
    poor = replace(measures(one), tps_slo=1e9, tps_slo_all=1e9)  # output in plenty, no prompts
    by_key = {found.key: found for found in results()}
    by_key[sweep.key(one)] = sweep.Result(key=sweep.key(one), scenario=one, measures=asdict(poor))
    assert one.layout is Layout.DISAGGREGATED
    assert grid.tuned(PLAN, by_key)["disaggregated", 4.6, "bailian"] == CHOSEN["bailian"]


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [
        (0.12, 0.01, Verdict.AS_PUBLISHED),
        (0.08, 0.03, Verdict.AS_PUBLISHED),  # its interval reaches the published range
        (0.03, 0.01, Verdict.SAME_DIRECTION),
        (0.30, 0.01, Verdict.SAME_DIRECTION),
        (0.01, 0.02, Verdict.WITHIN_NOISE),
        (0.05, 0.08, Verdict.WITHIN_NOISE),  # holds the published value, and zero
        (-0.05, 0.01, Verdict.DIFFERS),
    ],
)
def test_a_margin_is_judged_by_its_interval(mean: float, half: float, verdict: Verdict) -> None:
    """As published only where the interval reaches the published range; noise is never called a difference."""
    assert findings.margin("", 0.10, 0.16, Interval(mean, half, 5), "").verdict is verdict


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [(0.1, 0.05, Verdict.AS_PUBLISHED), (0.1, 0.2, Verdict.WITHIN_NOISE), (-0.1, 0.05, Verdict.DIFFERS)],
)
def test_a_direction_needs_a_clear_difference(mean: float, half: float, verdict: Verdict) -> None:
    """More or less counts only where zero lies outside the interval."""
    assert findings.direction("", 1, Interval(mean, half, 5), "").verdict is verdict
    assert findings.direction("", -1, Interval(-mean, half, 5), "").verdict is verdict


@pytest.mark.parametrize(("value", "verdict"), [(1.2, Verdict.AS_PUBLISHED), (1.4, Verdict.DIFFERS)])
def test_a_level_is_judged_by_its_distance(value: float, verdict: Verdict) -> None:
    """Within 15 % counts as published; what is farther says how far."""
    found = findings.level("", 1.1, Interval(value, 0.1, 5), findings.seconds, "1.1 s", "Because.")
    assert found.verdict is verdict
    assert found.remark == ("" if verdict is Verdict.AS_PUBLISHED else "27% higher. Because.")


def test_an_ordering_names_what_is_not_so() -> None:
    """Equal values do not count as ordered; neighbours that are swapped are named."""
    paper = ["least-loaded", "smetric", "bailian"]

    def judged(*values: float) -> findings.Finding:
        return findings.ordering("", paper, [(p, Interval(v, 0.1, 5)) for p, v in zip(paper, values, strict=True)])

    assert judged(2.0, 2.6, 3.0).verdict is Verdict.AS_PUBLISHED
    assert judged(2.0, 3.0, 2.6).verdict is Verdict.IN_PART
    assert judged(2.0, 3.0, 2.6).word == "Not so: SMetric < Bailian."
    assert judged(3.0, 3.0, 2.6).verdict is Verdict.DIFFERS
    assert findings.ordering("", paper, []).verdict is Verdict.NO_DATA


def test_findings_follow_the_results() -> None:
    """Results in which SMetric wins by 11 % read as published; the same with Bailian ahead do not."""
    evidence = Evidence.of(PLAN, results())
    found = {finding.what: finding for finding in colocated.throughput(evidence)}
    margin = found["SMetric against the best baseline, global/local 4.6"]
    assert margin.verdict is Verdict.AS_PUBLISHED
    assert margin.ours == "+11.1 % ± 0.0 (Bailian)"
    assert found["load balance only without a global store, against the best"].verdict is Verdict.AS_PUBLISHED
    order = {f.what: f for f in colocated.balance(evidence)}["order of max/mean load"]
    assert order.verdict is Verdict.AS_PUBLISHED
    assert order.ours == "load balance only 2.00 < SMetric 2.60 < Bailian 3.00 < LMetric 3.20"


def test_the_other_way_round_is_said() -> None:
    """With SMetric's results halved, its margin is said to be the other way round."""

    def halved(one: sweep.Result) -> sweep.Result:
        found = measures(one.scenario)
        lower = replace(found, tps_slo=found.tps_slo / 2) if one.scenario.policy == "smetric" else found
        return msgspec.structs.replace(one, measures=asdict(lower))

    evidence = Evidence.of(PLAN, map(halved, results()))
    found = {finding.what: finding for finding in colocated.throughput(evidence)}
    margin = found["SMetric against the best baseline, global/local 4.6"]
    assert margin.verdict is Verdict.DIFFERS
    assert margin.word == "The other way round here."


def test_every_part_is_judged() -> None:
    """With all results, every part of the paper has findings, and none is without data."""
    evidence = Evidence.of(PLAN, results())
    assert evidence.missing() == 0
    found = document.parts(evidence, [])
    assert all(judged for heading, _, judged in found if not heading.startswith("The workload"))
    assert not [f for _, _, judged in found for f in judged if f.verdict is Verdict.NO_DATA]
    assert sum(len(judged) for _, _, judged in found) > 60


@pytest.mark.parametrize(
    "kept", [lambda s: s.policy != "least-loaded", lambda s: s.seed == 0, lambda s: s.policy == "smetric"]
)
def test_a_part_of_the_results_makes_a_document(kept: Callable[[Scenario], bool]) -> None:
    """Whatever is missing, the document is written, and says that something is."""
    some = [one for one in results() if kept(one.scenario)]
    text = document.markdown(Evidence.of(PLAN, some), [], [], None)
    assert "simulations of the plan have no result" in text
    assert "nan" not in text


def test_the_document_is_written_from_what_is_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--write-only makes document and figures without simulating, and labels a quick one as such."""
    monkeypatch.setattr("loadgen.commands.paper.QUICK", PLAN)
    lines = b"".join(msgspec.json.encode(one) + b"\n" for one in results())
    (tmp_path / sweep.FILE).write_bytes(lines)
    assert cli.main(["paper", "--quick", "--write-only", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "reproduction.md").read_text()
    assert "Cite no number of it" in text
    assert "| SMetric against the best baseline, global/local 4.6 | +10 to +16 % | +11.1 % ± 0.0 (Bailian) |" in text
    assert "**weight 0.5: " in text
    images = [line.split("(")[-1].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert len(images) > 8
    assert all((tmp_path / image).stat().st_size > 0 for image in images)
    assert "wrote" in capsys.readouterr().out


def test_nothing_stored_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--write-only without results fails and says what to do."""
    assert cli.main(["paper", "--write-only", "--out", str(tmp_path)]) == 1
    assert "no results" in capsys.readouterr().err


def test_the_workload_is_studied_and_kept(tmp_path: Path) -> None:
    """Studies are made once, at the paper's density, and judged; another plan's are not taken for these."""
    plan = replace(PLAN, seeds=(0,), study_s=120.0)
    made = workload.studies(plan, tmp_path, jobs=1)
    assert workload.studies(plan, tmp_path, jobs=1) == made
    assert workload.read(replace(plan, seeds=(1,)), tmp_path) == []
    found = {finding.what: finding for finding in workload.findings(made)}
    assert found["triggers of requests"].verdict is Verdict.AS_PUBLISHED
    assert math.isclose(made[0].rate.mean if made[0].rate else 0, workload.DENSITY, rel_tol=0.2)
