"""The step-time model meets the measurements that it was fitted to."""

from __future__ import annotations

import pytest

from loadgen.engine.instance import Instance, Request
from loadgen.engine.timing import PROFILES


def ttft(profile: str, prompt: int) -> float:
    """Seconds to the first token of a cold prompt on an idle instance."""
    instance = Instance[Request](PROFILES[profile], blocks=prompt // 16 + 2)
    request = Request(prompt=prompt, reply=1, keys=range((prompt // 16) + 1))
    instance.submit(request)
    now = PROFILES[profile].overhead
    while not request.sampled:
        step = instance.begin(now)
        assert step
        now = step.ends
        instance.finish(step)
    return now


@pytest.mark.parametrize(("prompt", "seconds"), [(1_024, 0.078), (16_384, 1.54), (32_768, 4.6), (65_536, 15.2)])
def test_cold_prefill_of_30b_on_h20(prompt: int, seconds: float) -> None:
    """TTFT of cold prompts is within 5 % of what was measured on the machine."""
    assert ttft("30b-h20", prompt) == pytest.approx(seconds, rel=0.05)


def test_decoding_of_30b_on_h20() -> None:
    """A single short request decodes at the measured 5.9 ms a token."""
    assert PROFILES["30b-h20"].seconds([], [1_000]) == pytest.approx(5.9e-3, rel=0.05)
