"""One simulated vLLM as a process: options, sockets, start and graceful end.

Simulated: how long a step takes, and what the reply says. Real: HTTP, the chat template, the tokenizer, the prefix
cache and its KV events.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from loadgen.engine.chat_api import ChatApi, Served
from loadgen.engine.clock import Engine, LiveRequest
from loadgen.engine.http import Server
from loadgen.engine.instance import Event, Limits
from loadgen.engine.kv_events import Format
from loadgen.engine.publisher import Addresses, Publisher
from loadgen.engine.timing import PROFILES
from loadgen.engine.transfer import TransferInstance

MODEL_DIR = Path(__file__).parent / "model"
DRAIN = 10.0  # seconds that open requests get to finish after SIGTERM


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


async def serve(options: EngineOptions, ready: Callable[[str], None] = lambda url: None) -> None:
    """Run one engine until SIGTERM or SIGINT; open requests get `DRAIN` seconds to finish. `ready` is told the URL.

    Raises:
        ValueError: impossible options.
        OSError: the HTTP port is taken, or the model directory is no such thing.
        zmq.ZMQError: an event address is taken or malformed.
    """
    api = ChatApi(options.model_dir, options.served())
    instance = TransferInstance(PROFILES[options.profile], options.capacity(), options.block_size, options.limits)
    async with contextlib.AsyncExitStack() as stack:
        publish = _discard
        if options.kv_events:
            publisher = Publisher(
                options.kv_events, options.block_size, options.event_format, bytes_hashes=options.bytes_hashes
            )
            publish = (await stack.enter_async_context(publisher)).publish
        engine = Engine(instance, publish, options.time_scale)
        steps = asyncio.create_task(engine.run())
        stack.callback(steps.cancel)
        runner = web.AppRunner(
            Server(api, engine, instance).app(),
            access_log=None,
            handler_cancellation=True,  # a client that hangs up frees its request
            auto_decompress=False,  # vLLM takes no compressed bodies
            shutdown_timeout=DRAIN,
        )
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.TCPSite(runner, options.host, options.port).start()
        ready(f"http://{options.host}:{runner.addresses[0][1]}")
        stopped = asyncio.create_task(_stop_signal())
        stack.callback(stopped.cancel)
        await asyncio.wait({steps, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if steps.done():
            steps.result()  # raises what ended it


async def _discard(events: Sequence[Event[LiveRequest]]) -> None:
    """Where events go that nobody asked for."""


async def _stop_signal() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
