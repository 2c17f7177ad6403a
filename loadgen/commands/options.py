"""Options that several commands have, and how their values are read."""

from __future__ import annotations

import argparse
import math

from extproc.routing.policies import registry
from loadgen.command_error import CommandError
from loadgen.results.records import Slo


def add_service_level(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Declare --slo-ttft, --slo-ttft-per-token and --slo-tpot, in a group that may get more options."""
    default = Slo()
    group = parser.add_argument_group(title)
    for option, value in (
        ("--slo-ttft", default.ttft_s),
        ("--slo-ttft-per-token", default.ttft_per_token_s),
        ("--slo-tpot", default.tpot_s),
    ):
        group.add_argument(option, type=float, default=value, metavar="S", help="(%(default)s)")
    return group


def service_level(args: argparse.Namespace) -> Slo:
    """What they were given. Raises CommandError for what is no time."""
    for option, value, least in (
        ("--slo-ttft", args.slo_ttft, "0 or more"),
        ("--slo-ttft-per-token", args.slo_ttft_per_token, "0 or more"),
        ("--slo-tpot", args.slo_tpot, "a positive number"),
    ):
        if not 0 <= value < math.inf or (value == 0 and option == "--slo-tpot"):
            raise CommandError(f"{option} {value}: {least} is expected")
    return Slo(args.slo_ttft, args.slo_ttft_per_token, args.slo_tpot)


def policy_option(policy: str, text: str, where: str) -> tuple[str, float]:
    """An option of a policy and its value out of "NAME=X". Raises CommandError, which begins with `where` it stands."""
    name, _, value = text.partition("=")
    name = name.strip().replace("-", "_")
    known = registry.options(policy)
    if name not in known:
        raise CommandError(f"{where}: policy {policy} has {', '.join(known) or 'no options'}")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise CommandError(f"{where}: NAME=NUMBER is expected")
    return name, number


def positive(text: str) -> float:
    """The type of an option that is a number above 0."""
    if not (value := not_negative(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def not_negative(text: str) -> float:
    """The type of an option that is a number from 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return value


def count(text: str) -> int:
    """The type of an option that is a whole number from 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)
