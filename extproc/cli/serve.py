"""`extproc serve`: answer Envoy's external processing streams."""

from __future__ import annotations

import argparse
from pathlib import Path

from extproc.app.options import MAX_STREAMS, REMEMBER_BYTES, Options
from extproc.base.headers import TOKEN
from extproc.cli import long_running, options

DESCRIPTION = """\
Serve Envoy's external processing protocol. Pools and policy come from the Envoy YAML; a wrong configuration is
reported, place by place, before any port is bound. SIGTERM drains: health turns NOT_SERVING, open streams finish.
SIGHUP reads the Envoy YAML again: what is right takes effect without losing a stream, what is wrong is said and left.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    options.add_log_level(parser)
    options.add_envoy_yaml(parser)
    options.add_watch(parser)
    _add_ports(parser)
    add = parser.add_argument
    options.add_index(parser, f"memory:// or {options.REDIS_FORM}, which routers share")
    add(
        "--workers",
        type=options.positive,
        default=1,
        metavar="N",
        help="processes, each on ports 10 further on (9002, 9012, ...); needs redis://",
    )
    add(
        "--drain-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds that open streams may take on SIGTERM, default %(default)s",
    )
    add(
        "--remember-mib",
        type=options.not_negative,
        default=REMEMBER_BYTES >> 20,
        metavar="N",
        help="memory of a process for bodies that it has read: a follow-up is parsed from where it is new; 0 for none, "
        "default %(default)s",
    )
    add("--no-follow", action="store_true", help="leave the engines' events to other processes (needs redis://)")
    _add_tls(parser)
    add(
        "--conformance",
        action="store_true",
        help="let clients choose their instance, as conformance tests of gateways do; never in production",
    )
    add(
        "--debug-explain",
        action="store_true",
        help="serve /debug/explain also where /debug has no loopback address",
    )


def _add_ports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        type=options.address,
        default="127.0.0.1:9002",
        metavar="HOST:PORT",
        help="gRPC, default %(default)s",
    )
    parser.add_argument(
        "--health",
        type=options.address,
        default="127.0.0.1:9003",
        metavar="HOST:PORT",
        help="gRPC health, default %(default)s",
    )
    options.add_metrics(parser)


def _add_tls(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--tls-cert",
        type=Path,
        metavar="PATH",
        help="serve --listen by TLS: certificate chain, read again when renewed",
    )
    add("--tls-key", type=Path, metavar="PATH", help="private key of --tls-cert")
    add("--tls-self-signed", action="store_true", help="serve --listen by TLS with a certificate of our own (openssl)")
    add(
        "--tls-client-ca",
        type=Path,
        metavar="PATH",
        help="let in only who shows a certificate that one of these authorities signed (mutual TLS)",
    )
    add(
        "--token-file",
        type=Path,
        metavar="PATH",
        help=f"let in only streams that show one of these tokens, one a line, as {TOKEN} in the filter's "
        f"initial_metadata; default ${options.TOKEN_VARIABLE}",
    )
    add(
        "--max-streams",
        type=options.positive,
        default=MAX_STREAMS,
        metavar="N",
        help="streams that one connection may have open, default %(default)s; far above what Envoy has in flight",
    )


def run(arguments: argparse.Namespace) -> int:
    """0 after a drain, 1 where the configuration is wrong or a part cannot start, 2 where no file can be read."""
    from extproc.app import workers

    return long_running.run(arguments, _options, workers.serve)


def _options(arguments: argparse.Namespace, index: str) -> Options:
    return Options(
        listen=arguments.listen,
        health=arguments.health,
        metrics=arguments.metrics,
        debug=arguments.debug,
        debug_tokens=options.debug_tokens(arguments),
        index=index,
        workers=arguments.workers,
        drain_timeout_s=arguments.drain_timeout,
        follow=not arguments.no_follow,
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        tls_self_signed=arguments.tls_self_signed,
        tls_client_ca=arguments.tls_client_ca,
        tokens=options.tokens(arguments),
        max_streams=arguments.max_streams,
        conformance=arguments.conformance,
        debug_explain=arguments.debug_explain,
        remember_bytes=arguments.remember_mib << 20,
        watch=arguments.watch,
        log_level=arguments.log_level,
    )
