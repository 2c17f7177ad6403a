"""What one simulated engine is told: addresses, names, the model's files, the size of its cache. Starts nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from loadgen.engine.chat_api import Served
from loadgen.engine.instance import Limits
from loadgen.engine.kv_events import Format
from loadgen.engine.publisher import Addresses
from loadgen.engine.timing import PROFILES

MODEL_DIR = Path(__file__).parent / "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """One engine. `blocks` None: what the profile's accelerator has room for."""

    host: str = "127.0.0.1"
    port: int = 8000
    models: tuple[str, ...] = ("tiny",)
    adapters: tuple[str, ...] = ()
    model_dir: Path = MODEL_DIR
    profile: str = "demo"
    time_scale: float = 1.0
    blocks: int | None = None
    block_size: int = 16
    max_model_len: int | None = None
    limits: Limits = field(default_factory=Limits)
    kv_events: Addresses | None = None
    event_format: Format = Format.MAPS
    bytes_hashes: bool = False
    log_requests: bool = False

    def served(self) -> Served:
        """What to serve.

        Raises:
            ValueError: a context that is longer than the cache.
        """
        capacity = self.capacity() * self.block_size
        if self.max_model_len is not None and self.max_model_len > capacity:
            raise ValueError(f"--max-model-len {self.max_model_len} is more than the cache holds ({capacity} tokens)")
        length = min(capacity, 131_072) if self.max_model_len is None else self.max_model_len
        return Served(self.models, self.adapters, length, self.block_size)

    def capacity(self) -> int:
        """Blocks of the cache."""
        return PROFILES[self.profile].capacity // self.block_size if self.blocks is None else self.blocks
