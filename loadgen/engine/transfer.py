"""Prefill and decode on two engines: vLLM's `kv_transfer_params` as its NIXL connector speaks them, simulated.

    prefill engine   a request with `do_remote_decode`: its blocks stay after its end, and the answer says where
    decode engine    a request with `do_remote_prefill` and that answer's params: pulls the blocks, computes only the
                     prompt's last token, and stores the blocks as its own (its KV events say so, as vLLM's do)

Simulated is the side channel: a POST to the prefill engine, answered once, which frees the blocks there. A transfer
takes no time. Where the blocks are gone (pulled before, expired, the engine died) the decode engine computes the prompt
itself, which is vLLM's `kv_load_failure_policy: recompute`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from uuid import uuid4

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

from loadgen.engine.block_cache import Block
from loadgen.engine.clock import LiveRequest
from loadgen.engine.completion import Completion
from loadgen.engine.errors import invalid
from loadgen.engine.instance import Instance
from loadgen.json_types import Json

PATH = "/simulated/kv/{request}"  # the side channel
LEASE = (
    30.0  # seconds that blocks wait to be pulled: `kv_lease_duration` of vLLM 0.32, whose heartbeats are not modelled
)
PULL = aiohttp.ClientTimeout(total=5.0)


class TransferInstance(Instance[LiveRequest]):
    """An instance that takes KV from another (`LiveRequest.loaded`) and keeps it for another (`LiveRequest.export`)."""

    def _admit(self, request: LiveRequest, now: float) -> bool:
        if not super()._admit(request, now):
            return False
        # The last token is computed here, for there is nothing to sample from otherwise.
        arrives = min(request.loaded, request.prompt - 1) - request.computed
        if arrives > 0:
            self._compute(request, arrives)
        return True

    def _retire(self, request: LiveRequest) -> None:
        if request.export and request.sampled == request.reply:
            request.exported = list(request.blocks)
            self.cache.use(request.exported)
        super()._retire(request)

    def release(self, blocks: list[Block]) -> None:
        """The exported blocks of a request are no longer needed."""
        self.cache.release(blocks)


class _Export(msgspec.Struct):
    tokens: int
    blocks: list[Block]
    expiry: asyncio.TimerHandle


class Transfers:
    """One engine's side of all transfers. Close it at the end: it holds connections."""

    def __init__(self, instance: TransferInstance, registry: CollectorRegistry) -> None:
        self._instance = instance
        self._engine_id = str(uuid4())
        self._exports: dict[str, _Export] = {}
        self._session: aiohttp.ClientSession | None = None
        self._pulls = Counter("simulated:kv_pulls", "Prompts whose KV came from another engine.", registry=registry)
        self._failed = Counter("simulated:kv_pulls_failed", "Prompts whose KV was gone.", registry=registry)

    def add_to(self, app: web.Application) -> None:
        """Serve the side channel, and close with the application."""
        app.router.add_post(PATH, self._hand_over)
        app.on_cleanup.append(self._close)

    @contextlib.asynccontextmanager
    async def during(self, body: Mapping[str, Json], completion: Completion) -> AsyncIterator[None]:
        """Do what `kv_transfer_params` ask for before the request is generated; keep nothing if it is aborted.

        Raises:
            Refused: 400, they are no object.
        """
        params = body.get("kv_transfer_params")
        if params is not None and not isinstance(params, dict):
            raise invalid("kv_transfer_params must be an object", "kv_transfer_params")
        request = completion.request
        if params and params.get("do_remote_prefill"):
            request.loaded = await self._pull(params)
            request.remote_hit = int(params.get("remote_prefill_cached_tokens") or 0) if request.loaded else 0
        elif params and params.get("do_remote_decode"):
            request.export = not completion.stream  # only a whole answer can carry params
        try:
            yield
        finally:
            if request.exported is not None and completion.id not in self._exports:
                self._instance.release(request.exported)

    def params(self, http: web.Request, completion: Completion) -> dict[str, Json] | None:
        """What the answer to a finished request says of its KV; its blocks can be pulled from here on."""
        request = completion.request
        if request.exported is None or http.transport is None:
            return None
        host, port = http.transport.get_extra_info("sockname")[:2]
        tokens = len(request.exported) * self._instance.block_size
        expiry = asyncio.get_running_loop().call_later(LEASE, self._forget, completion.id)
        self._exports[completion.id] = _Export(request.prompt, request.exported, expiry)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(len(request.exported)))],
            "remote_engine_id": self._engine_id,
            "remote_request_id": completion.id,
            "remote_host": host,
            "remote_port": port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": min(request.prompt, tokens),
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": request.hit,
        }

    async def _pull(self, params: Mapping[str, Json]) -> int:
        """Tokens whose KV arrived; 0 where it is gone."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=PULL)
        channel = f"http://{params.get('remote_host')}:{params.get('remote_port')}"
        path = PATH.format(request=params.get("remote_request_id"))
        try:
            async with self._session.post(channel + path) as answer:
                tokens = int((await answer.json())["tokens"]) if answer.status == 200 else 0
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, LookupError):
            tokens = 0
        (self._pulls if tokens else self._failed).inc()
        return tokens

    async def _hand_over(self, http: web.Request) -> web.Response:
        tokens = self._forget(http.match_info["request"])
        return web.json_response({"tokens": tokens}, status=200 if tokens else 404)

    def _forget(self, identity: str) -> int:
        export = self._exports.pop(identity, None)
        if export is None:
            return 0
        export.expiry.cancel()
        self._instance.release(export.blocks)
        return export.tokens

    async def _close(self, _app: web.Application) -> None:
        if self._session is not None:
            await self._session.close()
