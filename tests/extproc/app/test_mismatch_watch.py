"""The alarm where nothing that is routed matches what the engines cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import REGISTRY

from extproc.app import mismatch_watch
from extproc.base import metrics
from extproc.base.model import Instance, Source
from extproc.index import Change
from extproc.index.memory import MemoryIndex
from extproc.prompts.renderer import PlainRenderer
from extproc.routing.pools.pool import Pool
from tests.support.agents import until
