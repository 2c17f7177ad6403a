"""TTFT and TPOT over all requests, as the share that took longer: both axes logarithmic, so that the tail shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from loadgen.report.figures.style import Drawn, legend, looks, panels, where
from loadgen.report.material import Case, Group, Trail
from loadgen.results.measures import Measures, Quantiles

NEEDS = "latency: requests that were answered"
_SHARES = {"p50": 0.5, "p75": 0.25, "p90": 0.1, "p95": 0.05, "p99": 0.01}  # of values above
_MOST = 0.95  # the share above which a curve begins: the fastest requests are of no interest


def draw(group: Group) -> Iterator[Drawn]:
    """Two panels, a curve a policy: of all values where there are rows, else of the quantiles."""
    case, style, trails = group.main, looks(group), group.trails()
    whole = all(label in trails for label in case.curves)
    figure, axes = panels(2, width=3.6)
    some = False
    for ax, name, seconds, points in (
        (axes[0], "Time to first token (s)", _ttft, lambda measures: measures.ttft),
        (axes[1], "Time per output token (ms)", _tpot, lambda measures: measures.tpot),
    ):
        for label in case.curves:
            if whole:
                xs, ys = _tail([value for trail in trails[label] for value in seconds(trail)])
            else:
                xs, ys = _from_quantiles(case, label, points)
            scale = 1e3 if "ms" in name else 1.0
            kept = [(x * scale, y) for x, y in zip(xs, ys, strict=True) if x > 0 and y <= _MOST]  # nan is not above 0
            some = some or bool(kept)
            ax.plot(
                [x for x, _ in kept],
                [y for _, y in kept],
                color=style[label].color,
                linestyle=style[label].line,
                marker="" if whole else style[label].marker,
                label=label,
            )
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel(name)
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4%}".rstrip("0%").rstrip(".") + "%"))
    if not some:
        return
    axes[0].set_ylabel("Share of requests that took longer")
    legend(figure, axes)
    how = (
        "All requests of the runs whose rows were given"
        if whole
        else "Medians, p75, p90, p95 and p99 (means over seeds)"
    )
    caption = f"{how} {where(group, case)}; requests without a first token are left out (the table counts them)."
    yield Drawn("latency", "TTFT and TPOT, tails", caption, figure)


def _ttft(trail: Trail) -> Sequence[float]:
    return trail.ttft


def _tpot(trail: Trail) -> Sequence[float]:
    return trail.tpot


def _tail(values: Sequence[float], most: int = 400) -> tuple[list[float], list[float]]:
    """Ascending values and the share above or at each; thinned where they are dense, never in the tail."""
    ordered = sorted(values)
    count = len(ordered)
    kept = (
        sorted({count - 1 - round((count - 1) ** (step / most)) for step in range(most + 1)} | {count - 1})
        if count
        else []
    )
    return [ordered[index] for index in kept], [(count - index) / count for index in kept]


def _from_quantiles(case: Case, label: str, points: Callable[[Measures], Quantiles]) -> tuple[list[float], list[float]]:
    def quantile(name: str) -> float:
        return case.curves[label].mean(case.rate, lambda measures: getattr(points(measures), name)).mean

    return [quantile(name) for name in _SHARES], list(_SHARES.values())
