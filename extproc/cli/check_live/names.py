"""Names of the YAML as addresses, and the instances behind them: found as `serve` finds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from extproc.base.model import Instance
from extproc.cli.check_live.findings import Finding, failed, ok
from extproc.cli.check_live.network import TRY_S, attempt, host_and_port
from extproc.config import PoolSettings, instances
from extproc.config.settings import ADDRESS
from extproc.instances.discovery import of_family, resolve

_REMEDY = "correct the name, or run this where the router runs and the name is known"


@dataclass(frozen=True, slots=True)
class Found:
    """A pool's instances, and what was said of the names that lead to them."""

    pool: PoolSettings
    instances: Sequence[Instance]
    findings: Sequence[Finding]


async def find(pool: PoolSettings) -> Found:
    """The pool's instances at this moment."""
    found: list[Instance] = []
    findings = []
    known: dict[str, Sequence[str]] = {}
    for host in dict.fromkeys(_names(pool)):
        known[host], finding = await _look_up(pool, host)
        findings += [finding] if finding else []
    for endpoint in pool.endpoints:
        for address in known[endpoint.host]:
            found += instances(endpoint, address)
    return Found(pool, list({instance.name: instance for instance in found}.values()), findings)


def _names(pool: PoolSettings) -> Iterator[str]:
    for endpoint in pool.endpoints:
        yield endpoint.host
        for template in (endpoint.kv_events, endpoint.kv_replay):
            if template is not None and ADDRESS not in template:
                yield host_and_port(template)[0]


async def _look_up(pool: PoolSettings, host: str) -> tuple[Sequence[str], Finding | None]:
    try:
        return [str(ip_address(host))], None
    except ValueError:
        pass
    what = f"{pool.name} name {host}"
    if host == "*":
        return (), None

    async def ask() -> tuple[Sequence[str], Finding]:
        found = [str(address) for address in of_family(await resolve(host), pool.dns_family)]
        if not found:
            return (), failed(what, f"there is no such name, or no address of family {pool.dns_family}", _REMEDY)
        return found, ok(what, ", ".join(sorted(found)))

    return await attempt(ask(), lambda reason: ((), failed(what, f"the resolver fails: {reason}", _REMEDY)), TRY_S)
