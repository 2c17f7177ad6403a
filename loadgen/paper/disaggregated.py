"""What the paper says of 32 prefill instances under disaggregation, beside ours: section 5.3."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.paper.colocated import MARGIN, QUEUE, SKEW
from loadgen.paper.evidence import Evidence
from loadgen.paper.findings import Finding, level, margin, ordering, percent, plain, seconds, share, signed
from loadgen.paper.settings import LATENCY_FACTOR, NAMES
from loadgen.simulation.sweeps.peaks import Value


def findings(evidence: Evidence) -> Iterator[Finding]:
    """Prefill TPS at each provisioning; the rest fully provisioned at the paper's rate for latencies."""
    for ratio in evidence.plan.setting("disaggregated").ratios:
        arena = evidence.arena("disaggregated", ratio)
        if "smetric" in arena.curves and arena.baselines:
            rival = arena.best()
            what = f"prefill TPS, SMetric against the best, global/local {ratio:g}"
            yield margin(what, 0.02, 0.34, arena.margin("smetric", rival), "+2 to +34 %", NAMES[rival], MARGIN)
            if ratio == 1.6:
                ours = arena.margin("smetric", "bailian")
                yield margin("prefill TPS, SMetric against Bailian, 1.6", 0.15, 0.15, ours, "+15 %", why=MARGIN)
    arena = evidence.arena("disaggregated")
    if not {"smetric", "bailian", "lmetric", "dynamo"} <= arena.curves.keys():
        return
    ours = arena.margin("smetric", "lmetric")
    yield margin("prefill TPS, SMetric against LMetric, full", 0.02, 0.02, ours, "+2 %", why=MARGIN)
    at = LATENCY_FACTOR
    paper = {"smetric": 3.3, "bailian": 3.3, "lmetric": 4.2, "dynamo": 4.6}
    found = {policy: arena.at(at, policy, lambda m: m.imbalance) for policy in paper}
    yield ordering("order of max/mean load", ["smetric", "lmetric", "dynamo"], list(found.items()))
    for policy, imbalance in found.items():
        yield level(f"max/mean load: {NAMES[policy]}", paper[policy], imbalance, plain, f"{paper[policy]}", SKEW)
    for policy, hits in (("smetric", 0.66), ("bailian", 0.68)):
        ours = arena.at(at, policy, lambda m: m.local)
        yield level(f"local hits: {NAMES[policy]}", hits, ours, percent, share(hits))
    yield level("overall reuse: SMetric", 0.76, arena.at(at, "smetric", lambda m: m.reuse), percent, share(0.76))
    ttfts: list[tuple[str, Value, float, str, float]] = [
        ("median", lambda m: m.ttft.p50, 1.1, "bailian", 1.8),
        ("P90", lambda m: m.ttft.p90, 10.9, "dynamo", 13.3),
        ("P99", lambda m: m.ttft.p99, 44.2, "lmetric", 47.4),
    ]
    for name, value, ours_s, rival, theirs_s in ttfts:
        for policy, stated in (("smetric", ours_s), (rival, theirs_s)):
            what = f"TTFT {name}: {NAMES[policy]}"
            yield level(what, stated, arena.at(at, policy, value), seconds, f"{stated} s", QUEUE)
        change = ours_s / theirs_s - 1
        ours = arena.margin_at(at, "smetric", rival, value)
        yield margin(f"TTFT {name} against {NAMES[rival]}", change, change, ours, signed(change))
