"""One simulated vLLM as a process: sockets, start and graceful end.

Simulated: how long a step takes, and what the reply says. Real: HTTP, the chat template, the tokenizer, the prefix
cache and its KV events.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Sequence

from aiohttp import web

from loadgen.engine.chat_api import ChatApi
from loadgen.engine.clock import Engine, LiveRequest
from loadgen.engine.http import Server
from loadgen.engine.instance import Event
from loadgen.engine.options import EngineOptions
from loadgen.engine.publisher import Publisher
from loadgen.engine.timing import PROFILES
from loadgen.engine.transfer import TransferInstance

DRAIN = 10.0  # seconds that open requests get to finish after SIGTERM


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
            Server(api, engine, instance, sys.stderr.write if options.log_requests else None).app(),
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
    """Takes events that are not published."""


async def _stop_signal() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
