"""The command line: `serve` runs the processor, `follow` feeds a shared index, `check` judges an Envoy YAML."""

from __future__ import annotations

import argparse
import inspect
import logging
import sys
import textwrap
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import msgspec
import uvloop

from extproc import __version__, config
from extproc.admin.explain import Explanation
from extproc.app import node, workers
from extproc.app.node import Address, Options
from extproc.base.errors import ConfigError
from extproc.base.headers import TURN
from extproc.requests.apis import CHAT
from extproc.routing.policies import registry
from extproc.routing.route import CLUSTER

_EPILOG = """\
examples:
  python -m extproc check envoy.yaml
  python -m extproc serve --envoy-yaml envoy.yaml
  python -m extproc serve --envoy-yaml envoy.yaml --index redis://127.0.0.1:6379/0 --workers 4

Pools, instances and policy are configured in the Envoy YAML itself (docs/drop-into-your-envoy.md).
"""

_SERVE = """\
Serve Envoy's external processing protocol. Pools and policy come from the Envoy YAML; a wrong configuration is
reported, place by place, before any port is bound. SIGTERM drains: health turns NOT_SERVING, open streams finish.
"""

_FOLLOW = """\
Follow the engines' KV events into a shared (redis://) index without serving Envoy. `serve` starts one such process by
itself; run more of them, anywhere, for takeover within seconds when one dies.
"""

_CHECK = """\
Explain what an Envoy YAML means to the processor, and every mistake in it with its place and its remedy.
Exit status: 0 usable (warnings are printed), 1 errors, 2 the file cannot be read.
"""


_EXPLAIN = """\
Say why a request goes where it goes: its API, turn, rendered length and history; with --state also what each instance
has cached and in flight, each guard's arithmetic and the choice, all without counting the request. No text is shown.
"""

_POLICIES = """\
Every policy with its formula, its source, when it loses, and its options. `x-smetric-policy` in the Envoy YAML chooses
one; `x-smetric-shadow` lets others watch: the metrics then say what they would have done.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    status: int = options.run(options)
    return status


def _serve(arguments: argparse.Namespace) -> int:
    return _run(arguments, follow_only=False)


def _follow(arguments: argparse.Namespace) -> int:
    return _run(arguments, follow_only=True)


def _run(arguments: argparse.Namespace, *, follow_only: bool) -> int:
    options = Options(
        envoy_yaml=arguments.envoy_yaml,
        listen=arguments.listen,
        health=arguments.health,
        metrics=arguments.metrics,
        index=arguments.index,
        workers=arguments.workers,
        drain_timeout_s=arguments.drain_timeout,
        follow=not arguments.no_follow,
        until_stdin_closes=arguments.until_stdin_closes,
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        tls_self_signed=arguments.tls_self_signed,
        conformance=arguments.conformance,
        debug_explain=arguments.debug_explain,
        replica=arguments.replica,
    )
    try:
        settings = config.load(options.envoy_yaml)
        uvloop.run(node.follow(settings, options) if follow_only else workers.serve(settings, options))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{options.envoy_yaml}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


def _check(arguments: argparse.Namespace) -> int:
    try:
        report = config.inspect(arguments.envoy_yaml)
    except OSError as error:
        print(f"{arguments.envoy_yaml}: {error.strerror or error}", file=sys.stderr)
        return 2
    print(report.render())
    return 1 if report.settings is None else 0


def _explain(arguments: argparse.Namespace) -> int:
    about = {"path": arguments.path}
    about |= {CLUSTER: arguments.cluster} if arguments.cluster else {}
    about |= {TURN: str(arguments.turn)} if arguments.turn is not None else {}
    try:
        body = arguments.body.read_bytes()
        if arguments.state:
            explanation = _ask(f"{arguments.state.rstrip('/')}/debug/explain?{urlencode(about)}", body)
        else:
            settings = config.load(arguments.envoy_yaml)
            explanation = uvloop.run(node.explain(settings, arguments.index, about, body))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename or arguments.state}: {error.strerror or error}", file=sys.stderr)
        return 2
    print(explanation.text())
    if not arguments.state:
        print("offline    every load counts as 0; --state URL asks a running server")
    return 0


def _ask(url: str, body: bytes) -> Explanation:
    """Ask a running server. Raises OSError and ConfigError."""
    try:
        with urlopen(Request(url, body or b" "), timeout=60) as answer:  # noqa: S310 - the operator's own URL
            return msgspec.json.decode(answer.read(), type=Explanation)
    except HTTPError as error:
        said = error.read().decode(errors="replace").strip()
        if error.code == 404:
            said = "no /debug/explain there: it is served where --metrics is a loopback address, or by --debug-explain"
        raise ConfigError(f"{url.partition('?')[0]}: {said}") from error
    except (ValueError, HTTPException) as error:
        raise ConfigError(f"{url.partition('?')[0]}: this is no server of ours ({error})") from error


def _policies(_: argparse.Namespace) -> int:
    """Every policy: its formula as its module documents it, and its options."""
    for name in registry.names():
        print(name)
        print(textwrap.indent((inspect.getdoc(registry.module(name)) or "").strip(), "  "))
        for option, value in registry.options(name).items():
            print(f"  option x-smetric-{option.replace('_', '-')}: {value:g} by default")
        print()
    return 0


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "extproc",
        description="Route agents' LLM requests through Envoy: balanced once, then kept where their KV cache is.",
        epilog=_EPILOG,
        formatter_class=formatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve Envoy", description=_SERVE, formatter_class=formatter)
    follow = commands.add_parser("follow", help="feed a shared index", description=_FOLLOW, formatter_class=formatter)
    check = commands.add_parser("check", help="judge an Envoy YAML", description=_CHECK, formatter_class=formatter)
    policies = commands.add_parser(
        "policies", help="list the policies", description=_POLICIES, formatter_class=formatter
    )
    explain = commands.add_parser(
        "explain", help="say why a request goes where it goes", description=_EXPLAIN, formatter_class=formatter
    )
    for command in (serve, follow, check, explain):
        command.add_argument(
            "--log-level", default="info", choices=["debug", "info", "warning", "error"], help="default: %(default)s"
        )
    for command in (serve, follow, explain):
        command.add_argument("--envoy-yaml", type=Path, required=True, metavar="PATH", help="the Envoy configuration")
    for command in (serve, follow):
        command.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
        command.add_argument("--replica", default="", help=argparse.SUPPRESS)

    add = serve.add_argument
    add("--listen", type=_address, default="127.0.0.1:9002", metavar="HOST:PORT", help="gRPC, default %(default)s")
    add(
        "--health",
        type=_address,
        default="127.0.0.1:9003",
        metavar="HOST:PORT",
        help="gRPC health, default %(default)s",
    )
    add(
        "--metrics",
        type=_address,
        default="127.0.0.1:9090",
        metavar="HOST:PORT",
        help="/metrics and /debug/state, default %(default)s",
    )
    add(
        "--index",
        default="memory://",
        metavar="URL",
        help="memory:// (default) or redis[s]://[USER:PASSWORD@]HOST:PORT/DB, which routers share",
    )
    add(
        "--workers",
        type=_positive,
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
    add("--no-follow", action="store_true", help="leave the engines' events to other processes (needs redis://)")
    add(
        "--tls-cert",
        type=Path,
        metavar="PATH",
        help="serve --listen by TLS: certificate chain, read again when renewed",
    )
    add("--tls-key", type=Path, metavar="PATH", help="private key of --tls-cert")
    add("--tls-self-signed", action="store_true", help="serve --listen by TLS with a certificate of our own (openssl)")
    add(
        "--conformance",
        action="store_true",
        help="let clients choose their instance, as conformance tests of gateways do; never in production",
    )
    add(
        "--debug-explain",
        action="store_true",
        help="serve /debug/explain also where --metrics is no loopback address",
    )

    follow.add_argument(
        "--metrics",
        type=_address,
        default="127.0.0.1:9090",
        metavar="HOST:PORT",
        help="/metrics and /debug/state, default %(default)s",
    )
    follow.add_argument("--index", required=True, metavar="URL", help="redis[s]://[USER:PASSWORD@]HOST:PORT/DB")
    follow.set_defaults(listen=Address("", 0), health=Address("", 0), workers=1, drain_timeout=0.0, no_follow=False)
    follow.set_defaults(tls_cert=None, tls_key=None, tls_self_signed=False, conformance=False)
    follow.set_defaults(debug_explain=False)

    policies.add_argument("--log-level", default="warning", help=argparse.SUPPRESS)
    policies.set_defaults(run=_policies)
    explain.add_argument("body", type=Path, metavar="BODY", help="a file with the body of a request")
    explain.add_argument("--path", default=CHAT, metavar="PATH", help="of the request, default %(default)s")
    explain.add_argument("--cluster", metavar="NAME", help="the pool, where the filter does not name it")
    explain.add_argument("--turn", type=int, metavar="N", help=f"what a client would say by {TURN}")
    explain.add_argument("--index", default="memory://", metavar="URL", help="a shared index to ask")
    explain.add_argument("--state", metavar="URL", help="the --metrics address of a running server: ask that one")

    check.add_argument("envoy_yaml", type=Path, metavar="PATH", help="the Envoy configuration")
    serve.set_defaults(run=_serve)
    follow.set_defaults(run=_follow)
    check.set_defaults(run=_check)
    explain.set_defaults(run=_explain)
    return parser


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT (IPv6: [::1]:PORT)")
    return Address(host.strip("[]"), int(port))


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
