"""Findings, tables and figures -> the Markdown of docs/reproduction.md. Computes nothing that it does not show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from loadgen.paper import colocated, disaggregated, large, workload
from loadgen.paper.evidence import Arena, Evidence, goal, over_seeds
from loadgen.paper.figures import Placed
from loadgen.paper.findings import Finding, Verdict, percent, plain
from loadgen.paper.grid import candidates, worth
from loadgen.paper.made import Made
from loadgen.paper.settings import LATENCY_FACTOR, NAMES, Plan, Setting
from loadgen.results.intervals import Interval
from loadgen.results.records import Slo
from loadgen.study.findings import Study

Part = tuple[str, str, list[Finding]]  # heading, name of its figures, findings


def parts(evidence: Evidence, studies: Sequence[Study]) -> list[Part]:
    """Every part with its findings."""
    return [
        ("The workload (section 3)", "workload", list(workload.findings(studies))),
        ("30B, colocated: TPS within SLO", "colocated", list(colocated.throughput(evidence))),
        ("30B, colocated: where the reuse comes from", "", list(colocated.reuse(evidence))),
        ("30B, colocated: balance and stickiness", "", list(colocated.balance(evidence))),
        ("30B, colocated: latency", "", list(colocated.latency(evidence))),
        ("Guards: SMetric without and with its pre-filter", "guards", list(colocated.guards(evidence))),
        ("Plateaus: OVERLOAD and HIT_RATIO", "plateaus", list(colocated.plateaus(evidence))),
        ("235B on eight instances", "large", list(large.findings(evidence))),
        ("Disaggregated prefill", "disaggregated", list(disaggregated.findings(evidence))),
    ]


def markdown(evidence: Evidence, studies: Sequence[Study], figures: Sequence[Placed], made: Made | None) -> str:
    """The whole document."""
    found = parts(evidence, studies)
    lines = [
        "# The paper, reproduced in simulation",
        "",
        *_made(evidence, made),
        "",
        "## In short",
        "",
        *_short(evidence, found),
        "",
        "## What is simulated",
        "",
        *_setting(evidence.plan),
        "",
        "## How the baselines were tuned",
        "",
        *_tuning(evidence),
    ]
    for heading, name, findings in found:
        lines += ["", f"## {heading}", ""]
        lines += _findings(findings) if findings else ["Not simulated."]
        if name in {setting.name for setting in evidence.plan.settings}:
            lines += ["", *_sweep(evidence, evidence.plan.setting(name))]
        if name == "plateaus":
            lines += ["", *_plateaus(evidence)]
        for figure in figures:
            if figure.part == name:
                lines += [
                    "",
                    f"![{figure.drawn.title}]({figure.path})",
                    "",
                    f"{figure.drawn.title}. {figure.drawn.caption}",
                ]
    return "\n".join([*lines, ""])


def _made(evidence: Evidence, made: Made | None) -> Iterator[str]:
    plan = evidence.plan
    if plan.quick:
        yield "**A quick look, not the reproduction: few seeds, short windows, a coarse grid. Cite no number of it.**"
        yield ""
    missing = evidence.missing()
    yield "This file is written by a command, its words on agreement too; no number and no judgement was typed in."
    if made is not None:
        yield (
            f"Made by `{made.command}` on {made.started}, code {made.commit}, {made.machine}, {made.jobs} processes: "
            f"{len(evidence.results)} simulations, {evidence.seconds() / 3600:.1f} core hours, the last run of the "
            f"command took {made.seconds / 60:.0f} minutes. "
            f"`{made.command} --write-only` writes it again from the stored results."
        )
    yield (
        f"{_seeds(plan)} Each simulation: "
        f"{plan.warmup_s / 60:g} minutes that fill the caches and are discarded, then {plan.measure_s / 60:g} that "
        "count."
    )
    if missing:
        yield f"**{missing} simulations of the plan have no result: what needs them is missing or has fewer seeds.**"


def _short(evidence: Evidence, found: Sequence[Part]) -> Iterator[str]:
    counts = Counter(finding.verdict for _, _, findings in found for finding in findings)
    total = sum(counts.values())
    yield (
        f"Of {total} rows, "
        + ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
        + ". A single value counts as published within 15 % of it, a difference where our 95 % interval reaches the "
        "published one. The paper gives no intervals."
    )
    yield ""
    for finding in (f for _, _, findings in found for f in findings if _headline(f)):
        yield f"- {finding.what}: paper {finding.paper}; here {finding.ours}: **{finding.verdict}**."
    yield ""
    yield (
        "Where the margin appears and where not (fetch model, index view, lambda, l or l + 1, forks, load, skew), and "
        "whether a better policy exists, is in [policy-search.md](policy-search.md)."
    )


def _headline(finding: Finding) -> bool:
    return finding.what.startswith(
        ("SMetric against", "order of", "load balance only", "prefill TPS, SMetric against the")
    )


def _setting(plan: Plan) -> Iterator[str]:
    slo = Slo()
    yield (
        "The product's own router, policies, loads and index, on a virtual clock, before modelled instances "
        "(`python -m loadgen simulate --help`). The paper's trace is not public: sessions are generated from the "
        "profile `paper-trace-1`, which has its statistics. A global fetch holds up its instance's step at "
        f"{plan.settings[0].base.fetch_gbps:g} GB/s; follow-ups are sent their gap after the reply before."
    )
    yield ""
    yield (
        "TPS within SLO: output tokens a second (prompt tokens where only prefill is measured) of the requests with "
        f"TTFT <= {slo.ttft_s:g} s + {slo.ttft_per_token_s * 1000:g} ms a prompt token and TPOT <= "
        f"{slo.tpot_s * 1000:g} ms. The paper does not give the constants of its TTFT. A policy's maximum is at the "
        "rate with its highest mean over the seeds; differences are of paired seeds, in percent of the other policy. "
        "± is half a 95 % confidence interval."
    )
    yield ""
    yield (
        "The paper gives rates as factors of an unstated unit. Ours is set so that SMetric saturates near 1.75x, fully "
        "provisioned: " + "; ".join(f"{s.title}: 1.0x is {s.unit:g} requests/s" for s in plan.settings) + "."
    )


def _tuning(evidence: Evidence) -> Iterator[str]:
    plan = evidence.plan
    yield (
        "Each baseline gets the options with the most TPS within SLO at one rate near its knee, for every provisioning "
        "anew; SMetric keeps the paper's defaults (OVERLOAD 2, HIT_RATIO 0.5). Bold is what was taken."
    )
    yield ""
    rows = [
        [
            setting.name,
            f"{ratio:g}",
            f"{setting.tuned_at[ratio]:g}x",
            NAMES[policy],
            ", ".join(_candidates(evidence, setting, ratio, policy)),
        ]
        for setting in plan.settings
        for ratio in setting.ratios
        for policy in setting.baselines
        if len(candidates(policy)) > 1
    ]
    yield from _table(["setting", "global/local", "rate", "policy", "TPS within SLO by option"], rows)


def _candidates(evidence: Evidence, setting: Setting, ratio: float, policy: str) -> Iterator[str]:
    taken = evidence.chosen[setting.name, ratio, policy]
    for options in candidates(policy):
        value = worth(evidence.plan, setting, ratio, policy, options, evidence.results)
        text = f"{' '.join(f'{name} {number:g}' for name, number in options.items())}: {max(value, 0):,.0f}"
        yield f"**{text}**" if options == taken else text


def _sweep(evidence: Evidence, setting: Setting) -> Iterator[str]:
    unit = "prompt" if goal(setting) is not goal(evidence.plan.settings[0]) else "output"
    yield f"TPS within SLO ({unit} tokens/s) over the sweep; bold is a policy's maximum."
    for ratio in reversed(setting.ratios):
        arena = evidence.arena(setting.name, ratio)
        if arena.curves:
            factors = sorted({factor for curve in arena.curves.values() for factor in curve.rates})
            yield ""
            header = [f"global/local {ratio:g}", *(f"{factor:g}x" for factor in factors)]
            yield from _table([*header, "local hits", "reuse", "max/mean"], _policies(arena, factors))
    yield ""
    yield "Hits and max/mean load are at each policy's maximum."


def _policies(arena: Arena, factors: Sequence[float]) -> Iterator[list[str]]:
    for policy, curve in arena.curves.items():
        peak = arena.peak(policy)
        cells = []
        for factor in factors:
            text = plain(arena.at(factor, policy, arena.goal), 0) if factor in curve.points else "-"
            cells.append(f"**{text}**" if factor == peak else text)
        hits = [percent(_bare(arena.at(peak, policy, value))) for value in (lambda m: m.local, lambda m: m.reuse)]
        yield [NAMES[policy], *cells, *hits, plain(_bare(arena.at(peak, policy, lambda m: m.imbalance)), 2)]


def _plateaus(evidence: Evidence) -> Iterator[str]:
    yield f"At {LATENCY_FACTOR:g}x, fully provisioned."
    for option in ("overload", "hit_ratio"):
        rows = [
            [
                f"{value:g}" if value < 1e6 else "∞",
                plain(over_seeds(seeds, lambda m: m.tps_slo), 0),
                percent(_bare(over_seeds(seeds, lambda m: m.local))),
                percent(_bare(over_seeds(seeds, lambda m: m.reuse))),
            ]
            for value, seeds in evidence.sensitivity(option).items()
            if seeds
        ]
        yield ""
        yield from _table([option.upper(), "TPS within SLO", "local hits", "reuse"], rows)


def _bare(value: Interval) -> Interval:
    """Without its interval, for tables that would be too wide."""
    return Interval(value.mean, value.half, min(value.n, 1))


def _findings(findings: Iterable[Finding]) -> Iterator[str]:
    rows = [[f.what, f.paper, f.ours, f"**{f.verdict}**" + (f". {f.remark}" if f.remark else "")] for f in findings]
    yield from _table(["what", "the paper", "here", "how they compare"], rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _seeds(plan: Plan) -> str:
    found = [f"{setting.name} {_listed(plan.seeds_of(setting))}" for setting in plan.settings]
    tuned = [f"{_listed(plan.tuning_seeds_of(setting))}" for setting in plan.settings]
    return f"Seeds: {'; '.join(found)}. Baselines were tuned on others: {'; '.join(tuned)}."


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
