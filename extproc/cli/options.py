"""Options that several commands have, and the forms of their values."""

from __future__ import annotations

import argparse
from pathlib import Path

from extproc.app.options import Address


def add_log_level(parser: argparse.ArgumentParser) -> None:
    """`--log-level`."""
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"], help="default: %(default)s"
    )


def add_envoy_yaml(parser: argparse.ArgumentParser) -> None:
    """`--envoy-yaml`, which must be given."""
    parser.add_argument("--envoy-yaml", type=Path, required=True, metavar="PATH", help="the Envoy configuration")


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """`--metrics`."""
    parser.add_argument(
        "--metrics",
        type=address,
        default="127.0.0.1:9090",
        metavar="HOST:PORT",
        help="/metrics and /debug/state, default %(default)s",
    )


def add_of_children(parser: argparse.ArgumentParser) -> None:
    """What `serve` tells its children."""
    parser.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--replica", default="", help=argparse.SUPPRESS)


def address(text: str) -> Address:
    """HOST:PORT, an IPv6 host in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT (IPv6: [::1]:PORT)")
    return Address(host.strip("[]"), int(port))


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
