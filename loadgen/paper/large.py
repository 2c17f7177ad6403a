"""What the paper says of eight instances of the 235B model, beside ours: section 5.2."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.paper.evidence import Evidence, output
from loadgen.paper.findings import Finding, level, margin, ordering, percent, plain, seconds, share, signed
from loadgen.paper.settings import NAMES
from loadgen.simulation.sweeps.peaks import Value

MODEL = "The constants of this model are uncertain by 30 %."


def findings(evidence: Evidence) -> Iterator[Finding]:
    """All at SMetric's peak, as in the paper."""
    arena = evidence.arena("large")
    if not {"smetric", "bailian", "lmetric", "least-loaded"} <= arena.curves.keys():
        return
    peak = arena.peak("smetric")
    ours = arena.at(peak, "smetric", output)
    yield level("peak TPS within SLO: SMetric, output tokens/s", 516, ours, lambda v: plain(v, 0), "516", MODEL)
    yield margin("SMetric's peak against Bailian's", 0.08, 0.08, arena.margin("smetric", "bailian"), "+8 %")
    for policy, stated in (("lmetric", 0.20), ("least-loaded", 1 / (1 - 0.32) - 1)):
        ours = arena.margin_at(peak, "smetric", policy)
        yield margin(f"SMetric against {NAMES[policy]} at SMetric's peak", stated, stated, ours, signed(stated))
    paper = {"least-loaded": 1.3, "smetric": 1.6, "bailian": 1.6, "lmetric": 1.6}
    found = {policy: arena.at(peak, policy, lambda m: m.imbalance) for policy in paper}
    for policy, imbalance in found.items():
        yield level(f"max/mean load: {NAMES[policy]}", paper[policy], imbalance, plain, f"{paper[policy]}")
    ours = arena.at(peak, "smetric", lambda m: m.local)
    yield level("local hits: SMetric", 0.69, ours, percent, share(0.69))
    yield level("overall reuse: SMetric", 0.76, arena.at(peak, "smetric", lambda m: m.reuse), percent, share(0.76))
    order = [(policy, arena.at(peak, policy, lambda m: m.reuse)) for policy in ("least-loaded", "smetric")]
    yield ordering("overall reuse", ["least-loaded", "smetric"], order)
    yield level("TTFT median: SMetric", 0.85, arena.at(peak, "smetric", lambda m: m.ttft.p50), seconds, "0.85 s", MODEL)
    yield level("TTFT P90: SMetric", 7.7, arena.at(peak, "smetric", lambda m: m.ttft.p90), seconds, "7.7 s", MODEL)
    ttfts: list[tuple[str, Value, float]] = [
        ("median", lambda m: m.ttft.p50, -0.24),
        ("P90", lambda m: m.ttft.p90, -0.26),
    ]
    for name, value, stated in ttfts:
        ours = arena.margin_at(peak, "smetric", "lmetric", value)
        yield margin(f"TTFT {name} against LMetric", stated, stated, ours, signed(stated))
    tpots: list[tuple[str, Value, float, float, str]] = [
        ("median", lambda m: m.tpot.p50, -0.02, 0.02, "within 2 %"),
        ("P90", lambda m: m.tpot.p90, -0.13, -0.13, "-13 %"),
        ("P99", lambda m: m.tpot.p99, -0.34, -0.34, "-34 %"),
    ]
    for name, value, low, high, text in tpots:
        rival = min(arena.baselines, key=lambda policy: arena.at(peak, policy, value).mean)
        ours = arena.margin_at(peak, "smetric", rival, value)
        yield margin(f"TPOT {name} against the best baseline", low, high, ours, text, NAMES[rival])
