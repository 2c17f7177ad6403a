"""`python -m loadgen engine`: one simulated vLLM."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import uvloop
import zmq

from loadgen.command_error import CommandError
from loadgen.engine.instance import Limits
from loadgen.engine.kv_events import Format
from loadgen.engine.options import MODEL_DIR, EngineOptions
from loadgen.engine.publisher import Addresses
from loadgen.engine.server import serve
from loadgen.engine.timing import PROFILES

DESCRIPTION = """\
Run one simulated vLLM until Ctrl-C or SIGTERM.

Real are the HTTP API, the chat template and the tokenizer of a tiny model, the block-level prefix cache, and the KV
events on ZMQ, byte for byte those of vLLM 0.32 (or 0.23). Simulated are the time that a step takes (--profile) and what
the replies say: plain words and tool calls, the same for the same prompt.

example: an engine that a router can follow, and a question to it

  python -m loadgen engine --port 8000 --kv-events 'tcp://*:5557' --kv-replay 'tcp://*:5558'
  curl -s localhost:8000/v1/chat/completions -H 'content-type: application/json' \\
       -d '{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}'

example: the 30B model on an H20, ten times as fast, with a third of the cache that there is room for

  python -m loadgen engine --profile 30b-h20 --time-scale 0.1 --blocks 6000

endpoints: POST /v1/chat/completions /v1/chat/completions/render /tokenize /reset_prefix_cache, and more (docs/apis.md);
GET /health /metrics /v1/models
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    default = EngineOptions()
    http = parser.add_argument_group("HTTP")
    http.add_argument("--host", default=default.host, help="where to listen; 0.0.0.0 in a container (%(default)s)")
    http.add_argument(
        "--enable-log-requests",
        action="store_true",
        help="log what is asked and answered as vLLM does at level DEBUG: texts and token ids",
    )
    http.add_argument("--port", type=int, default=default.port, help="0 picks a free one (%(default)s)")
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model-name",
        action="append",
        metavar="NAME",
        help="name to serve; may be given again, any other name in a request gets 404 (tiny)",
    )
    model.add_argument("--lora", action="append", default=[], metavar="NAME", help="LoRA adapter to serve; repeatable")
    model.add_argument(
        "--model-dir",
        type=Path,
        default=MODEL_DIR,
        metavar="DIR",
        help="tokenizer.json, tokenizer_config.json and the chat template (a tiny model that comes with loadgen)",
    )
    model.add_argument(
        "--max-model-len", type=int, metavar="N", help="tokens of prompt plus reply (131072, or the cache)"
    )
    time = parser.add_argument_group("time")
    time.add_argument(
        "--profile", choices=sorted(PROFILES), default=default.profile, help="whose step times to take (%(default)s)"
    )
    time.add_argument(
        "--time-scale", type=float, default=1.0, metavar="X", help="multiplies every duration; 0.1 is ten times as fast"
    )
    cache = parser.add_argument_group("scheduler and cache")
    cache.add_argument("--blocks", type=int, metavar="N", help="blocks of KV cache (what the profile has room for)")
    cache.add_argument("--block-size", type=int, default=default.block_size, metavar="N", help="tokens (%(default)s)")
    cache.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=default.limits.batch_tokens,
        metavar="N",
        help="tokens of one step; longer prompts are prefilled in chunks (%(default)s)",
    )
    cache.add_argument(
        "--long-prefill-token-threshold",
        type=int,
        default=default.limits.long_prefill,
        metavar="N",
        help="tokens of one prompt in a step at most; 0: the whole step (%(default)s)",
    )
    cache.add_argument(
        "--max-num-seqs", type=int, default=default.limits.sequences, metavar="N", help="running at once (%(default)s)"
    )
    events = parser.add_argument_group("KV events")
    events.add_argument(
        "--kv-events",
        metavar="ADDRESS",
        help="publish here; bound if it holds * or ::, connected to otherwise, as in vLLM (no events)",
    )
    events.add_argument("--kv-replay", metavar="ADDRESS", help="answer replay requests here (no replay)")
    events.add_argument("--kv-topic", default="", metavar="TOPIC", help="first frame of every message (empty)")
    events.add_argument(
        "--event-format",
        choices=[style.value for style in Format],
        default=Format.MAPS.value,
        help="maps: vLLM 0.24 and later; arrays: up to 0.23 (%(default)s)",
    )
    events.add_argument("--bytes-hashes", action="store_true", help="32-byte block hashes in place of 64-bit integers")


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    for name in ("port", "blocks", "block_size", "max_num_batched_tokens", "max_num_seqs", "max_model_len"):
        value = getattr(args, name)
        if value is not None and value < (0 if name == "port" else 1):
            raise CommandError(f"--{name.replace('_', '-')} {value}: a positive number is needed")
    if args.port > 65_535:
        raise CommandError(f"--port {args.port}: ports end at 65535")
    if args.long_prefill_token_threshold < 0:
        raise CommandError("--long-prefill-token-threshold: 0 or a positive number is needed")
    if args.time_scale < 0:
        raise CommandError(f"--time-scale {args.time_scale}: time does not run backwards; 0 is as fast as possible")
    if args.kv_replay and not args.kv_events:
        raise CommandError("--kv-replay needs --kv-events: there is nothing to replay otherwise")
    options = EngineOptions(
        host=args.host,
        port=args.port,
        models=tuple(args.model_name or ("tiny",)),
        adapters=tuple(args.lora),
        model_dir=args.model_dir,
        profile=args.profile,
        time_scale=args.time_scale,
        blocks=args.blocks,
        block_size=args.block_size,
        max_model_len=args.max_model_len,
        limits=Limits(args.max_num_batched_tokens, args.max_num_seqs, args.long_prefill_token_threshold),
        kv_events=Addresses(args.kv_events, args.kv_replay, args.kv_topic) if args.kv_events else None,
        event_format=Format(args.event_format),
        bytes_hashes=args.bytes_hashes,
        log_requests=args.enable_log_requests,
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        uvloop.run(serve(options, ready=lambda url: logging.getLogger("loadgen").info("serving at %s", url)))
    except zmq.ZMQError as error:
        raise CommandError(f"KV events at {args.kv_events}, replay at {args.kv_replay}: {error}") from error
    except OSError as error:
        raise CommandError(f"{error} (another --port or --model-dir?)") from error
    except ValueError as error:
        raise CommandError(str(error)) from error
    return 0
