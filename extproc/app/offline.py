"""`explain` without a server."""

from __future__ import annotations

from collections.abc import Mapping

from extproc import config
from extproc.admin.explain import Explainer, Explanation
from extproc.app.pools import pool_of
from extproc.config import Settings
from extproc.index.open import open_index
from extproc.routing.pools.loads import Loads
from extproc.routing.router import Router
from extproc.shared_state.shared_secret import SharedSecret


async def explain(settings: Settings, index_url: str, about: Mapping[str, str], body: bytes) -> Explanation:
    """Explain a request without a server: no load is known, and of the caches what a shared index says.

    Endpoints count by the names that the configuration gives them. Raises ConfigError.
    """
    index, loads = open_index(index_url), Loads()
    pools = {name: pool_of(pool) for name, pool in settings.pools.items()}
    for name, pool in settings.pools.items():
        pools[name].instances = [one for each in pool.endpoints for one in config.instances(each, each.host)]
    if not index_url.startswith("memory:"):
        shared = SharedSecret.from_url(index_url)
        secret = await shared.peek()
        await shared.close()
        for keyed in pools.values():
            keyed.secret = secret
    try:
        return await Explainer(Router(index, loads), loads, pools, settings.default).answer(about, body, now=0.0)
    finally:
        await index.close()
