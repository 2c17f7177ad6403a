"""JSON as Python has it."""

from __future__ import annotations

from typing import Any

Json = Any  # whatever a JSON document may hold
