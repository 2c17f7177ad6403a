"""What the paper says of 32 colocated instances of the 30B model, beside ours: sections 4.1, 5.2, 5.4 and 5.5."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.paper.evidence import Arena, Evidence, output, over_seeds
from loadgen.paper.findings import (
    Finding,
    Verdict,
    bound,
    direction,
    level,
    margin,
    ordering,
    percent,
    plain,
    seconds,
    share,
    signed,
)
from loadgen.paper.settings import LATENCY_FACTOR, NAMES, number
from loadgen.results.intervals import mean_ci
from loadgen.simulation.sweeps.peaks import more

SEARCH = "[policy-search.md](policy-search.md)"
MARGIN = f"What decides the size of the margin is taken apart in {SEARCH}."
QUEUE = "A queueing time: it depends on how far beyond the knee the rate is, which the paper gives only as a factor."
COLLAPSE = -0.25  # relative: what counts as "loses most" of the paper, which gives no number
SKEW = "Depends on the sizes of the sessions, of which we have statistics and not the trace."


def throughput(evidence: Evidence) -> Iterator[Finding]:
    """TPS within SLO over provisionings and rates."""
    for ratio in evidence.plan.setting("colocated").ratios:
        arena = evidence.arena("colocated", ratio)
        if "smetric" not in arena.curves or not arena.baselines:
            continue
        rival = arena.best()
        ours = arena.margin("smetric", rival)
        if ratio:
            what = f"SMetric against the best baseline, global/local {ratio:g}"
            yield margin(what, 0.10, 0.16, ours, "+10 to +16 %", NAMES[rival], MARGIN)
        else:
            yield bound(
                "SMetric against Bailian, no global store", 0.01, arena.margin("smetric", "bailian"), "within 1 %"
            )
            yield _collapse(arena)
    arena = evidence.arena("colocated")
    if not {"smetric", "least-loaded"} <= arena.curves.keys():
        return
    rival = arena.best([policy for policy in arena.baselines if policy != "least-loaded"])
    ours = arena.margin("least-loaded", rival)
    yield bound("load balance only against the strongest baseline, full", 0.07, ours, f"within 7 % ({NAMES[rival]})")
    for factor, low, high, text in (
        (1.0, -0.01, 0.01, "within 1 %"),
        (1.5, 0.15, 0.15, "+15 %"),
        (1.75, 0.04, 0.04, "+4 %"),
    ):
        if factor in arena.curves["smetric"].points:
            rival = max(arena.baselines, key=lambda policy: arena.at(factor, policy, output).mean)
            ours = arena.margin_at(factor, "smetric", rival)
            yield margin(f"SMetric against the best at {factor:g}x, full", low, high, ours, text, NAMES[rival], MARGIN)
    yield _drop(arena)


def _collapse(arena: Arena) -> Finding:
    rival = arena.best(["smetric", "bailian", "lmetric"])
    ours = arena.margin("least-loaded", rival)
    hits = [arena.at(arena.peak(policy), policy, lambda m: m.reuse) for policy in ("least-loaded", rival)]
    word = f"It reuses {percent(hits[0])}, {NAMES[rival]} {percent(hits[1])}."
    what = "load balance only without a global store, against the best"
    verdict = Verdict.AS_PUBLISHED if ours.mean < COLLAPSE else Verdict.DIFFERS
    return Finding(what, "low", f"{percent(ours, sign=True)} ({NAMES[rival]})", verdict, word)


def _drop(arena: Arena) -> Finding:
    """Of those that have their peak before the highest rate."""
    what, paper = "the highest rate against the own peak", "all lose, SMetric least"
    drops = {}
    for policy in ("smetric", *arena.baselines):
        curve = arena.curves[policy]
        if arena.peak(policy) < curve.rates[-1]:
            drops[policy] = more(curve.at(curve.rates[-1], output), curve.at(arena.peak(policy), output))
    shown = ", ".join(f"{NAMES[policy]} {percent(drop, sign=True, digits=0)}" for policy, drop in drops.items())
    if len(drops) <= len(arena.baselines):
        return Finding(what, paper, shown or "none loses", Verdict.DIFFERS, "The others still gain there.")
    slowest = max(drops, key=lambda policy: drops[policy].mean)
    verdict = Verdict.AS_PUBLISHED if slowest == "smetric" else Verdict.IN_PART
    return Finding(what, paper, shown, verdict, f"{NAMES[slowest]} loses least.")


def reuse(evidence: Evidence) -> Iterator[Finding]:
    """Hit ratios at the rate at which the paper shows latencies; without a store, at the policy's peak."""
    arena = evidence.arena("colocated")
    if not arena.curves:
        return
    for policy, paper in (("smetric", 0.64), ("bailian", 0.65)):
        ours = arena.at(LATENCY_FACTOR, policy, lambda m: m.local)
        yield level(f"local hits, full: {NAMES[policy]}", paper, ours, percent, share(paper))
    for policy in ("smetric", *arena.baselines):
        ours = arena.at(LATENCY_FACTOR, policy, lambda m: m.reuse)
        why = "Nearly all that the workload can reuse at all: see its part."
        yield level(f"overall reuse, full: {NAMES[policy]}", 0.74, ours, percent, "73-75 %", why)
    total = [arena.at(LATENCY_FACTOR, policy, lambda m: m.reuse).mean for policy in ("smetric", *arena.baselines)]
    spread = max(total) - min(total)
    verdict = Verdict.AS_PUBLISHED if spread <= 0.04 else Verdict.DIFFERS
    yield Finding("overall reuse, full: highest less lowest", "2 points", f"{100 * spread:.1f} points", verdict)
    none = evidence.arena("colocated", 0.0)
    for policy, paper in (("bailian", 0.58), ("lmetric", 0.33), ("least-loaded", 0.06)):
        if policy in none.curves:
            ours = none.at(none.peak(policy), policy, lambda m: m.local)
            yield level(f"local hits, no global store: {NAMES[policy]}", paper, ours, percent, share(paper))


def balance(evidence: Evidence) -> Iterator[Finding]:
    """Imbalance of tokens an instance and minute, at the rate at which the paper shows it."""
    arena = evidence.arena("colocated")
    paper = {"least-loaded": 2.0, "smetric": 2.6, "bailian": 3.0, "lmetric": 3.2}
    found = {p: arena.at(LATENCY_FACTOR, p, lambda m: m.imbalance) for p in paper if p in arena.curves}
    yield ordering("order of max/mean load", list(paper), list(found.items()))
    for policy, ours in found.items():
        yield level(f"max/mean load: {NAMES[policy]}", paper[policy], ours, plain, f"{paper[policy]}", SKEW)
    start = {policy: over_seeds(seeds, lambda m: m.imbalance) for policy, seeds in evidence.start().items()}
    first = {"least-loaded": 2.1, "bailian": 2.7, "lmetric": 3.0}
    yield ordering("order of max/mean load, first 10 minutes", list(first), list(start.items()))
    for policy, value in first.items():
        if policy in start:
            yield level(f"max/mean, first 10 minutes: {NAMES[policy]}", value, start[policy], plain, f"{value}", SKEW)
    for policy, value in (("least-loaded", 0.040), ("bailian", 0.966)):
        if policy in arena.curves:
            ours = arena.at(LATENCY_FACTOR, policy, lambda m: m.sticky_first)
            text = share(value)
            yield level(f"follow-ups on the first turn's instance: {NAMES[policy]}", value, ours, percent, text, TUNED)


TUNED = "Bailian is tuned for tokens within the service level here; the operator's own weight favours hits more."


def latency(evidence: Evidence) -> Iterator[Finding]:
    """TTFT and TPOT of all requests at the paper's rate."""
    arena = evidence.arena("colocated")
    if not {"smetric", "bailian", "lmetric"} <= arena.curves.keys():
        return
    at = LATENCY_FACTOR
    yield level("TTFT median: SMetric", 1.1, arena.at(at, "smetric", lambda m: m.ttft.p50), seconds, "1.1 s", QUEUE)
    ours = arena.margin_at(at, "smetric", "bailian", lambda m: m.ttft.p50)
    yield margin("TTFT median, against Bailian", -0.17, -0.17, ours, "-17 %")
    ours = arena.margin_at(at, "smetric", "lmetric", lambda m: m.ttft.p90)
    yield margin("TTFT P90, against LMetric", -0.10, 0.0, ours, "slightly lower")
    ours = arena.margin_at(at, "smetric", "lmetric", lambda m: m.ttft.p99)
    yield margin("TTFT P99, against LMetric", -0.10, 0.0, ours, "slightly lower")
    for name, value, paper in (("P50", lambda m: m.tpot.p50, -0.10), ("P90", lambda m: m.tpot.p90, -0.20)):
        rival = min(arena.baselines, key=lambda policy: arena.at(at, policy, value).mean)
        ours = arena.margin_at(at, "smetric", rival, value)
        yield margin(f"TPOT {name}, against the best baseline", paper, paper, ours, signed(paper), NAMES[rival])
    ours = arena.margin_at(at, "smetric", "bailian", lambda m: m.tpot.p99)
    yield direction("TPOT P99, against Bailian", 1, ours, "somewhat higher")


def guards(evidence: Evidence) -> Iterator[Finding]:
    """SMetric against SMetric without its guards."""
    arena = evidence.guards()
    if not arena.curves:
        return
    at = LATENCY_FACTOR
    for what, value, before, after, unit, scale in (
        ("TTFT P90", lambda m: m.ttft.p90, 16.1, 12.1, "s", 1),
        ("TTFT P99", lambda m: m.ttft.p99, 51.2, 45.3, "s", 1),
        ("TPOT P95", lambda m: m.tpot.p95, 89.2, 82.5, "ms", 1000),
    ):
        basic, full = (arena.at(at, policy, value) for policy in ("smetric-basic", "smetric"))
        ours = arena.margin_at(at, "smetric", "smetric-basic", value)
        change = after / before - 1
        found = margin(f"{what}, basic -> full", change, change, ours, f"{before} -> {after} {unit} ({signed(change)})")
        shown = f"{basic.mean * scale:.1f} -> {full.mean * scale:.1f} {unit} ({found.ours})"
        yield Finding(found.what, found.paper, shown, found.verdict, found.word, QUEUE)
    for factor in arena.curves["smetric"].rates:
        ours = arena.margin_at(factor, "smetric", "smetric-basic")
        yield direction(f"TPS within SLO at {factor:g}x, basic -> full", 1, ours, "modest gain")
    for name, value in (
        ("P75", lambda m: m.imbalance_30s.p75),
        ("P90", lambda m: m.imbalance_30s.p90),
        ("P99", lambda m: m.imbalance_30s.p99),
    ):
        basic, full = (arena.at(at, policy, value) for policy in ("smetric-basic", "smetric"))
        ours = arena.margin_at(at, "smetric", "smetric-basic", value)
        shown = f"{basic.mean:.2f} -> {full.mean:.2f} ({percent(ours, sign=True)})"
        yield direction(f"max/mean of 30 s windows, {name}, basic -> full", -1, ours, "lower", shown)


def plateaus(evidence: Evidence) -> Iterator[Finding]:
    """TPS within SLO and hits over the guards' parameters."""
    for option, name, most in (("overload", "OVERLOAD", 0.06), ("hit_ratio", "HIT_RATIO", 0.04)):
        found = {value: seeds for value, seeds in evidence.sensitivity(option).items() if seeds}
        base = found.get({"overload": 2.0, "hit_ratio": 0.5}[option])
        if not base or len(found) < 2:
            continue
        tps = {seed: output(m) for seed, m in base.items()}
        off = {v: more({s: output(m) for s, m in seeds.items()}, tps) for v, seeds in found.items()}
        worst = max(off, key=lambda value: abs(off[value].mean))
        span = f"{name} {number(min(found))} to {number(max(found))}"
        shown = f"{percent(off[worst], sign=True)} at {number(worst)}"
        verdict = Verdict.AS_PUBLISHED if abs(off[worst].mean) <= most else Verdict.DIFFERS
        yield Finding(
            f"{span}: TPS against the default", f"within {share(most)}", shown, verdict, "The farthest value is shown."
        )
        hits = [mean_ci(m.reuse for m in seeds.values()).mean for seeds in found.values()]
        spread = max(hits) - min(hits)
        verdict = Verdict.AS_PUBLISHED if spread <= 0.02 else Verdict.DIFFERS
        shown = f"{100 * min(hits):.1f}-{100 * max(hits):.1f} %"
        yield Finding(f"{span}: overall hits", "75-76 %", shown, verdict, "Judged by the spread, at most 2 points.")
