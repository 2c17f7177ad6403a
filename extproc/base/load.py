"""What an instance has in flight: the sum that routers keep, and tell each other."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Meta

_Count = Annotated[int, Meta(ge=0)]  # what another router tells is checked


class Load(NamedTuple):
    """Of one instance. Whole numbers, so that the sum of many ends at nothing."""

    requests: _Count = 0
    unprefilled: _Count = 0  # bytes of their prompts that are left to prefill
    work_us: _Count = 0  # how long these take, in microseconds of prefill

    def plus(self, other: Load, times: int = 1) -> Load:
        """Both together."""
        return Load(
            self.requests + times * other.requests,
            self.unprefilled + times * other.unprefilled,
            self.work_us + times * other.work_us,
        )

    def beyond(self, other: Load) -> Load:
        """What this has more of, each for itself."""
        return Load(*(max(0, mine - theirs) for mine, theirs in zip(self, other, strict=True)))


IDLE = Load()
