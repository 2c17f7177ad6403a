"""Options that several commands have, and the forms of their values."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from extproc.app.options import MEMORY, Address, Debug
from extproc.base.errors import ConfigError

INDEX_VARIABLE: Final = "SMETRIC_INDEX"  # of the environment
TOKEN_VARIABLE: Final = "SMETRIC_TOKEN"  # noqa: S105 - its name
DEBUG_TOKEN_VARIABLE: Final = "SMETRIC_DEBUG_TOKEN"  # noqa: S105 - its name
REDIS_FORM: Final = "redis[s]://[USER:PASSWORD@]HOST:PORT/DB"


def add_log_level(parser: argparse.ArgumentParser) -> None:
    """`--log-level`."""
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"], help="default: %(default)s"
    )


def add_envoy_yaml(parser: argparse.ArgumentParser) -> None:
    """`--envoy-yaml`, which must be given."""
    parser.add_argument("--envoy-yaml", type=Path, required=True, metavar="PATH", help="the Envoy configuration")


def add_watch(parser: argparse.ArgumentParser) -> None:
    """`--watch`."""
    parser.add_argument(
        "--watch",
        action="store_true",
        help="read the Envoy YAML again when it changes, as SIGHUP asks for; a wrong edit is said and not used",
    )


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """`--metrics`."""
    parser.add_argument(
        "--metrics",
        type=address,
        default="127.0.0.1:9090",
        metavar="HOST:PORT",
        help="/metrics and /debug/state, default %(default)s",
    )
    parser.add_argument(
        "--debug",
        type=debug,
        default=Debug.WITH_METRICS,
        metavar="HOST:PORT|off",
        help="an address of its own for /debug, or none at all; default: the one of --metrics",
    )
    add_debug_token(parser)


def add_debug_token(parser: argparse.ArgumentParser) -> None:
    """`--debug-token-file`; `debug_tokens` reads it."""
    parser.add_argument(
        "--debug-token-file",
        type=Path,
        metavar="PATH",
        help="/debug wants one of these tokens, one a line, as `Authorization: Bearer TOKEN`; "
        f"default ${DEBUG_TOKEN_VARIABLE}",
    )


def add_index(parser: argparse.ArgumentParser, about: str) -> None:
    """`--index` and `--index-file`; `index_url` reads both."""
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--index", metavar="URL", help=f"{about}; default ${INDEX_VARIABLE}")
    one.add_argument(
        "--index-file",
        type=Path,
        metavar="PATH",
        help="a file that holds the URL: a password is safe there, where every user can see a command line",
    )


def index_url(arguments: argparse.Namespace) -> str:
    """The index's URL: from the command line, from a file, or from the environment. Raises OSError for the file."""
    if arguments.index_file is not None:
        text: str = arguments.index_file.read_text()
        return text.strip()
    return arguments.index or os.environ.get(INDEX_VARIABLE) or MEMORY


def tokens(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The tokens of which a stream must show one. Raises OSError for the file, and ConfigError where it holds none."""
    return _secrets("--token-file", arguments.token_file, TOKEN_VARIABLE)


def debug_tokens(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The tokens of which `/debug` wants one. Raises as `tokens`."""
    return _secrets("--debug-token-file", arguments.debug_token_file, DEBUG_TOKEN_VARIABLE)


def _secrets(flag: str, path: Path | None, variable: str) -> tuple[str, ...]:
    """From a file or from the environment: never from a command line, which every user can read."""
    if path is not None:
        lines = path.read_text().split()
        if not lines:
            raise ConfigError(f"{flag} {path} holds no token")
        return tuple(lines)
    token = os.environ.get(variable)
    return (token,) if token else ()


def debug(text: str) -> Address | Debug:
    """HOST:PORT, or `off`."""
    return Debug.OFF if text == "off" else address(text)


def address(text: str) -> Address:
    """HOST:PORT, an IPv6 host in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT (IPv6: [::1]:PORT)")
    return Address(host.strip("[]"), int(port))


def not_negative(text: str) -> int:
    """A whole number from 0 on."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
