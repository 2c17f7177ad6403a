"""Studies side by side as a Markdown table, and what their traces do not say. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.study.findings import SOON_S, Intervals, Spread, Study

UNSAID = "not said"


def markdown(studies: Sequence[Study]) -> str:
    """One column a study."""
    heads = ["", *(study.trace for study in studies)]
    lines = [_line(heads), _line(["---"] * len(heads))]
    lines += [_line([row.name, *(row.cell(study) for study in studies)]) for row in _ROWS]
    for study in studies:
        if study.unsaid:
            lines += ["", f"{study.trace}: this format does not say", ""]
            lines += [f"- {what}" for what in study.unsaid]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class _Row:
    """A figure's name, where it stands in a study (None: the trace does not say), and how it is written."""

    name: str
    pick: Callable[[Study], Any]
    show: Callable[[Any], str]

    def cell(self, study: Study) -> str:
        value = self.pick(study)
        return UNSAID if value is None else self.show(value)


def _points(spread: Spread) -> str:
    return " / ".join(f"{value:,.0f}" for value in (spread.p50, spread.p90, spread.p99, spread.mean))


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _reuse(field: str) -> Callable[[Study], float | None]:
    return lambda study: None if study.reuse is None else getattr(study.reuse, field)


def _sessions(study: Study) -> str:
    return f"{study.sessions:,}{' (inferred)' if study.inferred else ''}, of them {study.forks:,} forks"


def _soon(found: Intervals) -> str:
    return f"{_share(found.soon)} of tokens, {_share(found.soon_requests)} of requests"


def _top(points: Sequence[tuple[float, float]]) -> str:
    shares = dict(points)
    return f"{_share(shares[0.01])}, {_share(shares[0.1])}"


_FOUR = "p50 / p90 / p99 / mean"
_ROWS = (
    _Row("requests", lambda study: study, lambda study: f"{study.requests:,} in {study.duration_s / 60:,.0f} min"),
    _Row("sessions", lambda study: None if study.sessions is None else study, _sessions),
    _Row(f"requests of a session, forks apart: {_FOUR}", lambda study: study.turns, _points),
    _Row(f"prompt tokens: {_FOUR}", lambda study: study.input, _points),
    _Row(f"reply tokens: {_FOUR}", lambda study: study.output, _points),
    _Row(f"tokens appended after the last reply: {_FOUR}", lambda study: study.append, _points),
    _Row(f"growth of prompts that grow, replies included: {_FOUR}", lambda study: study.growth, _points),
    _Row("Fig. 5: reusable, of prompt tokens (infinite store)", _reuse("ratio"), _share),
    _Row("the same of whole blocks alone", _reuse("whole"), _share),
    _Row("of the reuse: produced by the session itself", _reuse("within"), _share),
    _Row("of the reuse: system prompt, by another session", _reuse("system"), _share),
    _Row("of the reuse: else by other sessions", _reuse("other"), _share),
    _Row(f"Fig. 6: reused within {SOON_S:.0f} s of the last use's end", lambda study: study.intervals, _soon),
    _Row(
        "seconds from the last use's end: p50 / p90 / p99",
        lambda study: study.intervals,
        lambda found: f"{found.p50:.1f} / {found.p90:.1f} / {found.p99:.0f}",
    ),
    _Row(
        "Fig. 7: triggers",
        lambda study: study.triggers,
        lambda shares: ", ".join(f"{trigger} {_share(share)}" for trigger, share in shares.items()),
    ),
    _Row(f"Fig. 8: tokens of a session: {_FOUR}", lambda study: study.session_tokens, _points),
    _Row("tokens of the largest 1 %, 10 % of the sessions", lambda study: study.concentration, _top),
    _Row(
        "requests a minute and instance",
        lambda study: None if study.rate is None else study,
        lambda study: f"mean {study.rate.mean:.1f}, least {study.rate_least:.1f} (of {study.instances} instances)",
    ),
    _Row(
        "Fig. 9: hottest / mean instance in a minute",
        lambda study: study.balance,
        lambda found: f"median {found.median:.2f}, worst {found.worst:.2f}",
    ),
)
