"""Reading tests/fixtures: lines of a recording, its event payloads, its requests."""

from __future__ import annotations

import gzip
import json
from typing import Any

from tests.support.paths import FIXTURES

MODEL = FIXTURES / "model"


def lines(name: str) -> list[dict[str, Any]]:
    """All lines of `<version>/<scenario>`."""
    with gzip.open(FIXTURES / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def names(*versions: str) -> list[str]:
    """All recordings of these versions."""
    found = [path for version in versions for path in sorted((FIXTURES / version).glob("*.jsonl.gz"))]
    return [f"{path.parent.name}/{path.name.removesuffix('.jsonl.gz')}" for path in found]
