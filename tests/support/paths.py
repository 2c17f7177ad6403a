"""Where things are in the repository, so that a test that moves need not count its parents."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = ROOT / "tests"
FIXTURES: Final = TESTS / "fixtures"
MODEL: Final = FIXTURES / "model"
TEMPLATES: Final = TESTS / "templates"
