"""From the settings of a pool to the pool."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.base.errors import ConfigError
from extproc.config import PoolSettings
from extproc.prompts.renderer import PlainRenderer, Renderer
from extproc.routing.pace import Learner
from extproc.routing.pools.pool import Pool
from extproc.routing.pools.prefills import Prefills


def pool_of(settings: PoolSettings) -> Pool:
    """A pool as it is configured, before any instance of it is known."""
    return Pool(
        name=settings.name,
        renderer=PlainRenderer() if settings.model_dir is None else Renderer.load(settings.model_dir),
        models=settings.models,
        block_bytes=settings.prompt_block_bytes,
        source=settings.source,
        prefills=Prefills(Learner(settings.pace)),
    )


Files = Sequence[tuple[str, int, int]]  # name, time of the last change in ns, bytes


def files_of(settings: PoolSettings) -> Files:
    """The files of a pool's model as they stand now, by which a changed chat template is noticed; none without a model.

    Raises ConfigError.
    """
    if settings.model_dir is None:
        return ()
    try:
        stats = [(path.name, path.stat()) for path in sorted(settings.model_dir.iterdir()) if path.is_file()]
    except OSError as error:
        raise ConfigError(f"pool {settings.name}: {error.filename}: {error.strerror}") from error
    return [(name, stat.st_mtime_ns, stat.st_size) for name, stat in stats]
