"""What was found at one address, and how findings are printed. Knows no network."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

_WIDTH = 110


class Outcome(StrEnum):
    """Of one try. Only FAILED makes the command fail."""

    OK = "ok"
    UNKNOWN = "unknown"  # it could not be tried, or need not answer
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Finding:
    """One try: of what, how it went, what was said, and what to do."""

    what: str  # `engines 10.0.0.1:8000 events tcp://10.0.0.1:5557`
    outcome: Outcome
    said: str
    remedy: str = ""

    def render(self) -> str:
        """On one line, and a remedy below it."""
        lines = _wrapped(f"{self.outcome:<8} {self.what}: {self.said}", "")
        if self.remedy:
            lines += _wrapped(self.remedy, "      -> ")
        return "\n".join(lines)


def _wrapped(text: str, first: str) -> list[str]:
    """Addresses and paths stay whole: they are copied."""
    rest = " " * 9
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def ok(what: str, said: str) -> Finding:
    """It answers as it should."""
    return Finding(what, Outcome.OK, said)


def unknown(what: str, said: str) -> Finding:
    """Nothing is wrong that we know of."""
    return Finding(what, Outcome.UNKNOWN, said)


def failed(what: str, said: str, remedy: str) -> Finding:
    """The router would not work with it."""
    return Finding(what, Outcome.FAILED, said, remedy)


def render(findings: Sequence[Finding]) -> str:
    """All of them, failures last, where a terminal shows them; and a summary."""
    return "\n".join(_lines(findings))


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    yield "tried from this machine, which should be where the router runs:"
    yield ""
    for outcome in Outcome:
        same = [finding for finding in findings if finding.outcome is outcome]
        yield from (finding.render() for finding in (_joined(same) if outcome is Outcome.OK else same))
    bad = sum(finding.outcome is Outcome.FAILED for finding in findings)
    yield ""
    yield f"{bad} of {len(findings)} failed." if bad else f"None of {len(findings)} failed."


def _joined(findings: Sequence[Finding]) -> Iterator[Finding]:
    """All that is well at one place on one line."""
    said: dict[str, list[str]] = {}
    for finding in findings:
        said.setdefault(finding.what, []).append(finding.said)
    return (ok(what, "; ".join(words)) for what, words in said.items())
