"""Looks regularly whether prompts match caches at all; an error in the log and a metric say where they do not.

It also warns, once, of engines that announce a LoRA adapter under a name of the base model.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress

from extproc.base import metrics
from extproc.base.errors import IndexUnavailable
from extproc.base.model import Source
from extproc.index import Index
from extproc.routing import lora
from extproc.routing.pools import mismatch
from extproc.routing.pools.pool import Pool

_log = logging.getLogger(__name__)

LOOK_S = 10.0  # between two looks
AGAIN_S = 300.0  # until the same error is logged again


async def watch(pools: Mapping[str, Pool], index: Index) -> None:
    """Until it is cancelled."""
    said: dict[str, float] = {}
    refused: set[tuple[str, str]] = set()
    while True:
        await asyncio.sleep(LOOK_S)
        for pool in list(pools.values()):
            _refuse(pool, index, refused)
            broken = await _advice(pool, index)
            metrics.PROMPT_MISMATCH.labels(pool.name).set(broken is not None)
            now = time.monotonic()
            if broken is not None and now - said.get(pool.name, -AGAIN_S) >= AGAIN_S:
                said[pool.name] = now
                _log.error(broken)


def _refuse(pool: Pool, index: Index, said: set[tuple[str, str]]) -> None:
    for name, instances in lora.refused(pool, index.adapters(pool.name)).items():
        if (pool.name, name) not in said:
            said.add((pool.name, name))
            _log.warning(
                "pool %s: %s announces a LoRA adapter %r, which `models` gives as a name of the base model; "
                "requests for it are taken for the base model's (said once)",
                pool.name,
                ", ".join(sorted(instances)),
                name,
            )


async def _advice(pool: Pool, index: Index) -> str | None:
    """What an operator should know; None where all is well, or nothing can be said."""
    if pool.source is Source.EVENTS:
        with suppress(IndexUnavailable):
            indexed = sum((await index.sizes(pool.name)).values())
            heard = any(report.sequence >= 0 for report in (await index.reports(pool.name)).values())
            if pool.agreement.broken(indexed, heard=heard):
                return mismatch.advice(pool.name, pool.agreement.unmatched, indexed)
    return None
