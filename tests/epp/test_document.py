"""docs/endpoint-picker.md names a test for every rule; each must exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
DOCUMENT = TESTS.parent / "docs" / "endpoint-picker.md"


def test_every_rule_has_its_test() -> None:
    """A row without a test, or with one that was renamed, is a promise that nobody keeps."""
    table = DOCUMENT.read_text("utf-8").partition("| rule | test |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1:3] for row in table.splitlines()[2:]]
    defined = {
        name for path in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))
    }
    for rule, tests in rows:
        named = set(re.findall(r"`(test_\w+)`", tests))
        assert named or rule.strip().startswith("**"), rule
        assert named <= defined, named - defined
    assert len(rows) > 25
