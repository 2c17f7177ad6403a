"""The settings of a stream's route, read from the gRPC metadata that Envoy sends with the stream.

Owns the memory of what was read, and what counts where it cannot be used. Refuses to know the keys
(`routing/route_settings.py`) and the Envoy YAML that they were written in.
"""

from __future__ import annotations

import logging
from functools import lru_cache

from extproc.base import metrics
from extproc.base.errors import ConfigError
from extproc.routing.route_settings import RouteSettings, route_settings

_log = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str], ...]

MOST_ROUTES = 1024  # what is remembered: as many as a YAML has routes, and bounded, for metadata may be anything


class Routes:
    """Metadata -> settings, remembered: there are as many as routes in the YAML."""

    def __init__(self, default: RouteSettings | None) -> None:
        self._default = default
        self._read = lru_cache(maxsize=MOST_ROUTES)(self._parse)

    def change(self, default: RouteSettings | None) -> None:
        """Another configuration was loaded: this is what the filter says from now on."""
        self._default = default
        self._read.cache_clear()

    def __call__(self, metadata: Metadata) -> RouteSettings:
        """Never fails: what cannot be used is reported once, counted, and replaced by the default."""
        route, mistake = self._read(metadata)
        if mistake:
            metrics.BAD_ROUTES.inc()
        return route

    def _parse(self, metadata: Metadata) -> tuple[RouteSettings, bool]:
        try:
            return route_settings(dict(metadata), self._default), False
        except ConfigError as error:
            _log.error("%s; using the filter's own settings", error)
            return self._default or RouteSettings(""), True
