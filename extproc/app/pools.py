"""From the settings of a pool to the pool."""

from __future__ import annotations

from extproc.config import PoolSettings
from extproc.prompts.renderer import PlainRenderer, Renderer
from extproc.routing.pools.pool import Pool


def pool_of(settings: PoolSettings) -> Pool:
    """A pool as it is configured, before any instance of it is known."""
    return Pool(
        name=settings.name,
        renderer=PlainRenderer() if settings.model_dir is None else Renderer.load(settings.model_dir),
        models=settings.models,
        block_bytes=settings.prompt_block_bytes,
        source=settings.source,
    )
