"""How long one step of an instance takes: one formula, and its constants in one table.

docs/engine-model.md says where formula and constants come from. Treat them as calibration: 30b-h20 is within 5 % of
the measured points, 235b-4xh20 within 30 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

GB = 1e9


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A model on an accelerator. Times in seconds, sizes in bytes, rates in bytes a second."""

    fixed: float  # of every step, whatever is in it
    per_token: float  # compute of one token, where compute bounds the step
    per_pair: float  # attention of one new token over one earlier token
    dense_weights: float  # read in every step
    expert_weights: float  # read once enough tokens have chosen every expert
    weight_rate: float
    kv_rate: float
    kv_per_token: float
    capacity: int  # tokens of KV cache that fit beside the weights
    overhead: float  # of the API server, once a request: HTTP, template, tokenizer

    def seconds(self, chunks: Iterable[tuple[int, int]], contexts: Iterable[int]) -> float:
        """Duration of a step that prefills `chunks` of (new, earlier) tokens and decodes one token per context.

        T = fixed + max(per_token * N, weights(N) / weight_rate) + per_pair * sum c * (p + c / 2) + kv * sum x / kv_rate
        with N tokens in the step, c new after p earlier ones, and x tokens of context of a decode. Weights(N) grows
        with the share of experts that N tokens reach when each takes 8 of 128: 1 - (15/16)^N.
        """
        tokens = 0
        pairs = 0.0
        for new, earlier in chunks:
            tokens += new
            pairs += new * (earlier + new / 2)
        context = 0
        for length in contexts:
            tokens += 1
            context += length
        weights = self.dense_weights + self.expert_weights * (1 - (15 / 16) ** tokens)
        return (
            self.fixed
            + max(self.per_token * tokens, weights / self.weight_rate)
            + self.per_pair * pairs
            + self.kv_per_token * context / self.kv_rate
        )

    def decodes(self, sequences: int, context: int, steps: int) -> float:
        """Duration of consecutive steps that only decode: `seconds` summed up, each context a token longer each step.

        `context` is the sum over the sequences in the first of the steps.
        """
        first = self.seconds((), (context, *(0,) * (sequences - 1)))
        growth = self.kv_per_token * sequences / self.kv_rate  # from each step to the next
        return steps * first + growth * steps * (steps - 1) / 2

    def decode_steps(self, sequences: int, context: int, duration: float) -> int:
        """The fewest consecutive decode steps, at least one, that take `duration` seconds or longer."""
        first = self.seconds((), (context, *(0,) * (sequences - 1)))
        growth = self.kv_per_token * sequences / self.kv_rate
        linear = first - growth / 2
        root = (math.sqrt(linear * linear + 2 * growth * max(0.0, duration)) - linear) / growth
        steps = max(1, math.ceil(root))
        if steps > 1 and self.decodes(sequences, context, steps - 1) >= duration:  # rounding
            return steps - 1
        return steps


PROFILES: dict[str, Accelerator] = {
    # Qwen3-Coder-30B-A3B on one H20
    "30b-h20": Accelerator(
        fixed=4.0e-3,
        per_token=47.9e-6,
        per_pair=5.54e-9,
        dense_weights=2.46 * GB,
        expert_weights=57.98 * GB,
        weight_rate=3600 * GB,
        kv_rate=3700 * GB,
        kv_per_token=98_304,
        capacity=280_000,
        overhead=0.020,
    ),
    # Qwen3-Coder-30B-A3B on one H100
    "30b-h100": Accelerator(
        fixed=3.5e-3,
        per_token=10.8e-6,
        per_pair=1.26e-9,
        dense_weights=2.46 * GB,
        expert_weights=57.98 * GB,
        weight_rate=2600 * GB,
        kv_rate=3100 * GB,
        kv_per_token=98_304,
        capacity=127_000,
        overhead=0.016,
    ),
    # Qwen3-235B-A22B-FP8 on four H20, sizes and rates per GPU
    "235b-4xh20": Accelerator(
        fixed=15e-3,
        per_token=68e-6,
        per_pair=6.5e-9,
        dense_weights=1.84 * GB,
        expert_weights=56.8 * GB,
        weight_rate=3600 * GB,
        kv_rate=3700 * GB,
        kv_per_token=48_128,
        capacity=600_000,
        overhead=0.020,
    ),
    # 30b-h20 with tokens that stand for four, in prefill, in decode and in the cache: a workload with a quarter of the
    # lengths takes as long and fills the cache as far, and the machine has a quarter of it to tokenise.
    "30b-h20-quarter": Accelerator(
        fixed=4 * 4.0e-3,
        per_token=4 * 47.9e-6,
        per_pair=16 * 5.54e-9,
        dense_weights=2.46 * GB,
        expert_weights=57.98 * GB,
        weight_rate=3600 / 4 * GB,
        kv_rate=3700 / 4 * GB,
        kv_per_token=4 * 98_304,
        capacity=70_000,
        overhead=0.020,
    ),
    # No real hardware: a small model with a small cache, so that a demonstration of a minute on a laptop shows prefill,
    # hits and evictions while the laptop, not the model, has to tokenise every prompt.
    "demo": Accelerator(
        fixed=6.0e-3,
        per_token=40e-6,
        per_pair=0.5e-9,
        dense_weights=2.0 * GB,
        expert_weights=0.0,
        weight_rate=3600 * GB,
        kv_rate=3700 * GB,
        kv_per_token=49_152,
        capacity=160_000,
        overhead=0.0,
    ),
}
