"""`extproc explain`: why a request goes where it goes, here or in a running server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import msgspec

from extproc.base.errors import ConfigError
from extproc.base.headers import TURN
from extproc.cli import options
from extproc.requests.paths import Api
from extproc.routing.route_settings import CLUSTER

if TYPE_CHECKING:
    from extproc.admin.explain import Explanation

DESCRIPTION = """\
Say why a request goes where it goes: its API, turn, rendered length and history; with --state also what each instance
has cached and in flight, each guard's arithmetic and the choice, all without counting the request. No text is shown.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    options.add_log_level(parser)
    options.add_envoy_yaml(parser)
    add = parser.add_argument
    add("body", type=Path, metavar="BODY", help="a file with the body of a request")
    add("--path", default=Api.CHAT.value, metavar="PATH", help="of the request, default %(default)s")
    add("--cluster", metavar="NAME", help="the pool, where the filter does not name it")
    add("--turn", type=int, metavar="N", help=f"what a client would say by {TURN}")
    options.add_index(parser, "a shared index to ask")
    add("--state", metavar="URL", help="the --metrics (or --debug) address of a running server: ask that one")
    options.add_debug_token(parser)


def run(arguments: argparse.Namespace) -> int:
    """0 explained, 1 where nothing like this could be asked, 2 where a file or the server cannot be read."""
    about = {"path": arguments.path}
    about |= {CLUSTER: arguments.cluster} if arguments.cluster else {}
    about |= {TURN: str(arguments.turn)} if arguments.turn is not None else {}
    try:
        body = arguments.body.read_bytes()
        if arguments.state:
            url = f"{arguments.state.rstrip('/')}/debug/explain?{urlencode(about)}"
            explanation = _ask(url, body, options.debug_tokens(arguments))
        else:
            explanation = _offline(arguments, about, body)
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


def _offline(arguments: argparse.Namespace, about: dict[str, str], body: bytes) -> Explanation:
    import asyncio

    from extproc import config
    from extproc.app import offline

    settings = config.load(arguments.envoy_yaml)
    return asyncio.run(offline.explain(settings, options.index_url(arguments), about, body))


def _ask(url: str, body: bytes, tokens: Sequence[str]) -> Explanation:
    """Ask a running server. Raises OSError and ConfigError."""
    from extproc.admin.explain import Explanation

    try:
        headers = {"Authorization": f"Bearer {tokens[0]}"} if tokens else {}
        with urlopen(Request(url, body or b" ", headers), timeout=60) as answer:  # noqa: S310 - the operator's own URL
            return msgspec.json.decode(answer.read(), type=Explanation)
    except HTTPError as error:
        said = error.read().decode(errors="replace").strip()
        if error.code == 404:
            said = "no /debug/explain there: it is served where /debug has a loopback address, or by --debug-explain"
        if error.code == 401:
            said = f"it wants a token: give --debug-token-file, or ${options.DEBUG_TOKEN_VARIABLE}"
        raise ConfigError(f"{url.partition('?')[0]}: {said}") from error
    except (ValueError, HTTPException) as error:
        raise ConfigError(f"{url.partition('?')[0]}: this is no server of ours ({error})") from error
