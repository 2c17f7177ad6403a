"""A row of the paper beside ours, and the judgement on both, computed. Knows no experiment.

A judgement compares our mean and its 95 % interval with what the paper states; the paper gives no intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from loadgen.paper.settings import NAMES
from loadgen.results.intervals import Interval

NEAR = 0.15  # relative: what still counts as the published value
CLEAR = 0.005  # relative: the least difference that an ordering counts


class Verdict(StrEnum):
    """How ours compares with the paper's."""

    AS_PUBLISHED = "as published"
    IN_PART = "in part"
    SAME_DIRECTION = "same direction"
    WITHIN_NOISE = "no difference beyond noise"
    DIFFERS = "differs"
    NO_DATA = "not simulated"


@dataclass(frozen=True)
class Finding:
    """One row of the document. `word` says how they differ; `why` what is known of the reason, if they do."""

    what: str
    paper: str
    ours: str
    verdict: Verdict
    word: str = ""
    why: str = ""

    @property
    def remark(self) -> str:
        """What stands in the table's last column."""
        return " ".join(part for part in (self.word, "" if self.verdict is Verdict.AS_PUBLISHED else self.why) if part)


def percent(value: Interval, sign: bool = False, digits: int = 1) -> str:
    """A share or a difference: "64.2 % ± 0.5"."""
    return _number(value, f"{{:{'+' if sign else ''}.{digits}%}}", f"{{:.{digits}f}}", 100).replace("%", " %")


def plain(value: Interval, digits: int = 1, unit: str = "") -> str:
    """A number with its unit: "1.1 ± 0.1 s"."""
    text = _number(value, f"{{:,.{digits}f}}", f"{{:,.{digits}f}}", 1)
    return f"{text} {unit}".strip()


def seconds(value: Interval) -> str:
    """A latency: "1.10 ± 0.04 s"."""
    return plain(value, 2, "s")


def share(value: float) -> str:
    """A share as the paper states it: "64 %"."""
    return f"{100 * value:g} %"


def signed(value: float) -> str:
    """A difference as the paper states it: "+8 %"."""
    return f"{100 * value:+.0f} %"


def _number(value: Interval, form: str, half: str, scale: float) -> str:
    if not value.n:
        return "-"
    return form.format(value.mean) + (f" ± {half.format(value.half * scale)}" if value.n > 1 else "")


def level(
    what: str, paper: float, ours: Interval, show: Callable[[Interval], str], text: str, why: str = ""
) -> Finding:
    """A value the paper gives as a number: as published within `NEAR` of it."""
    if not ours.n:
        return Finding(what, text, "-", Verdict.NO_DATA)
    off = ours.mean / paper - 1
    if abs(off) <= NEAR:
        return Finding(what, text, show(ours), Verdict.AS_PUBLISHED)
    return Finding(what, text, show(ours), Verdict.DIFFERS, f"{abs(off):.0%} {'higher' if off > 0 else 'lower'}.", why)


def margin(what: str, low: float, high: float, ours: Interval, text: str, rival: str = "", why: str = "") -> Finding:
    """A relative difference that the paper gives as a number or a range: as published where our interval reaches it.

    An interval that holds zero as well tells nothing, unless the paper's range holds zero.
    """
    if not ours.n:
        return Finding(what, text, "-", Verdict.NO_DATA)
    shown = percent(ours, sign=True) + (f" ({rival})" if rival else "")
    half = ours.half if ours.n > 1 else 0.0
    reached = ours.mean - half <= high and ours.mean + half >= low
    if reached and (ours.clear or low <= 0 <= high):
        verdict, word = Verdict.AS_PUBLISHED, ""
    elif not ours.clear:
        verdict, word = Verdict.WITHIN_NOISE, f"Our interval holds zero{', the published value too' * reached}."
    elif (ours.mean > 0) == (low + high > 0):
        verdict, word = Verdict.SAME_DIRECTION, f"{'Smaller' if abs(ours.mean) < abs(low) else 'Larger'} here."
    else:
        verdict, word = Verdict.DIFFERS, "The other way round here."
    return Finding(what, text, shown, verdict, word, why)


def bound(what: str, most: float, ours: Interval, text: str, why: str = "") -> Finding:
    """A relative difference that the paper bounds on both sides."""
    if not ours.n:
        return Finding(what, text, "-", Verdict.NO_DATA)
    shown = percent(ours, sign=True)
    if abs(ours.mean) <= most:
        return Finding(what, text, shown, Verdict.AS_PUBLISHED)
    if not ours.clear:
        return Finding(what, text, shown, Verdict.WITHIN_NOISE, "Our interval holds zero.", why)
    return Finding(what, text, shown, Verdict.DIFFERS, f"Beyond {share(most)}.", why)


def direction(what: str, sign: int, ours: Interval, text: str, shown: str = "", why: str = "") -> Finding:
    """A difference of which the paper says only whether it is more (`sign` 1) or less (-1)."""
    shown = shown or percent(ours, sign=True)
    if not ours.n:
        return Finding(what, text, "-", Verdict.NO_DATA)
    if not ours.clear:
        return Finding(what, text, shown, Verdict.WITHIN_NOISE, "Our interval holds zero.", why)
    verdict = Verdict.AS_PUBLISHED if ours.mean * sign > 0 else Verdict.DIFFERS
    return Finding(what, text, shown, verdict, "", why)


def ordering(what: str, paper: Sequence[str], ours: Sequence[tuple[str, Interval]], why: str = "") -> Finding:
    """An order of policies, ascending. In part: some neighbours of the paper's order stand in ours as well."""
    text = " < ".join(NAMES[policy] for policy in paper)
    values = {policy: interval.mean for policy, interval in ours if interval.n and policy in paper}
    if len(values) < len(paper):
        return Finding(what, text, "-", Verdict.NO_DATA)
    found = sorted(values, key=lambda policy: values[policy])
    shown = " < ".join(f"{NAMES[policy]} {values[policy]:.2f}" for policy in found)
    swapped = [(a, b) for a, b in pairwise(paper) if values[a] >= values[b] * (1 - CLEAR)]
    if not swapped:
        return Finding(what, text, shown, Verdict.AS_PUBLISHED)
    word = "Not so: " + ", ".join(f"{NAMES[a]} < {NAMES[b]}" for a, b in swapped) + "."
    verdict = Verdict.IN_PART if len(swapped) < len(paper) - 1 else Verdict.DIFFERS
    return Finding(what, text, shown, verdict, word, why)
