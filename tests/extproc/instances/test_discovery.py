"""Following endpoints: addresses as Envoy takes them, changes that are told once, failures that change nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from ipaddress import ip_address
from pathlib import Path

import pytest
import yaml

from extproc import config
from extproc.base.model import Instance
from extproc.config import DnsFamily, Endpoint, PoolSettings, Settings
from extproc.instances import discovery
from extproc.instances.discovery import Address, Discovery

ASSIGNMENT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
REFRESH_S = 0.01
PATIENCE_S = 10.0

Names = list[str]


class Watcher:
    """What Discovery told, and a way to wait for it."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Names]] = []
        self._news = asyncio.Event()

    def __call__(self, pool: str, instances: tuple[Instance, ...]) -> None:
        self.told.append((pool, [instance.name for instance in instances]))
        self._news.set()

    @property
    def last(self) -> Names:
        return self.told[-1][1]

    async def until(self, expected: Names) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.told or self.last != expected:
                self._news.clear()
                await self._news.wait()


class Resolver:
    """A resolver whose answers a test changes: addresses, or the error that it fails with."""

    def __init__(self, **answers: Sequence[str] | OSError) -> None:
        self.answers: dict[str, Sequence[str] | OSError] = dict(answers)
        self.asked = 0

    async def __call__(self, host: str) -> Sequence[Address]:
        self.asked += 1
        answer = self.answers[host]
        if isinstance(answer, OSError):
            raise answer
        return [ip_address(text) for text in answer]

    async def two_rounds(self) -> None:
        """Wait until everything that was asked before has been asked, and answered, again."""
        async with asyncio.timeout(PATIENCE_S):
            target = self.asked + 2 * len(self.answers) + 1
            while self.asked < target:
                await asyncio.sleep(REFRESH_S)


def dns_pool(*hosts: str, family: DnsFamily = DnsFamily.AUTO, name: str = "p") -> PoolSettings:
    endpoints = tuple(Endpoint(host, 8000, "tcp://{address}:5557") for host in hosts)
    return PoolSettings(name, config.Discovery.STRICT_DNS, endpoints, dns_refresh_s=REFRESH_S, dns_family=family)


def settings(*pools: PoolSettings) -> Settings:
    return Settings(Path("x.yaml"), {pool.name: pool for pool in pools}, None)


@contextlib.asynccontextmanager
async def following(
    pools: Settings, told: discovery.OnChange, resolve: discovery.Resolve = discovery.resolve
) -> AsyncIterator[None]:
    found = Discovery(pools, told, resolve)
    await found.start()
    try:
        yield
    finally:
        await found.close()


async def test_static_endpoints_are_told_once() -> None:
    """IPv6 in brackets and in its short form, as Envoy names its hosts; ranks one by one."""
    endpoints = (Endpoint("10.0.0.1", 80), Endpoint("fd00:0:0::1", 80), Endpoint("10.0.0.2", 80, data_parallel_size=2))
    watcher = Watcher()
    async with following(settings(PoolSettings("p", config.Discovery.STATIC, endpoints)), watcher):
        assert watcher.told == [("p", ["10.0.0.1:80", "[fd00::1]:80", "10.0.0.2:80/0", "10.0.0.2:80/1"])]


async def test_every_address_of_a_name_is_an_instance_with_its_own_publisher() -> None:
    """A headless service is one endpoint in Envoy's YAML and as many instances as it has addresses."""
    resolver, seen = Resolver(a=["10.0.0.2", "10.0.0.1"], b=["10.0.1.1"]), list[Instance]()
    async with following(settings(dns_pool("a", "b")), lambda _, found: seen.extend(found), resolver):
        assert [i.kv_events for i in seen] == [f"tcp://{ip}:5557" for ip in ("10.0.0.1", "10.0.0.2", "10.0.1.1")]


async def test_the_real_resolver_knows_localhost_and_no_invalid_name() -> None:
    """RFC 6761: localhost is this host; a name that cannot exist has no address or cannot be resolved."""
    assert set(await discovery.resolve("localhost")) <= {ip_address("127.0.0.1"), ip_address("::1")}
    assert await discovery.resolve("127.0.0.9") == [ip_address("127.0.0.9")]
    assert await discovery.resolve("x" * 70 + ".test") == ()


async def test_changes_are_told_and_turns_of_the_answer_are_not() -> None:
    """An instance comes and goes with its address; the order in which a resolver lists them means nothing."""
    resolver, watcher = Resolver(a=["10.0.0.1", "10.0.0.2"]), Watcher()
    async with following(settings(dns_pool("a")), watcher, resolver):
        resolver.answers["a"] = ["10.0.0.2", "10.0.0.1"]
        await resolver.two_rounds()
        resolver.answers["a"] = ["10.0.0.2", "10.0.0.3"]
        await watcher.until(["10.0.0.2:8000", "10.0.0.3:8000"])
    assert len(watcher.told) == 2


async def test_a_resolver_that_fails_changes_nothing_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """SERVFAIL and timeouts keep the last known addresses, as Envoy does, until the resolver answers again."""
    resolver, watcher = Resolver(a=["10.0.0.1"], b=["10.0.1.1"]), Watcher()
    with caplog.at_level(logging.INFO, "extproc.instances.discovery"):
        async with following(settings(dns_pool("a", "b")), watcher, resolver):
            resolver.answers["a"] = OSError("SERVFAIL")
            await resolver.two_rounds()
            assert len(watcher.told) == 1
            resolver.answers["a"] = ["10.0.0.9"]
            await watcher.until(["10.0.0.9:8000", "10.0.1.1:8000"])
    assert [record.message for record in caplog.records if "SERVFAIL" in record.message] == [
        "pool p: a: the resolver failed: SERVFAIL"
    ]
    assert "pool p: a resolves again" in caplog.text


async def test_a_name_that_does_not_exist_has_no_instances() -> None:
    """Envoy drops the hosts of such a name (NXDOMAIN); its other names stay."""
    resolver, watcher = Resolver(a=["10.0.0.1"], b=["10.0.1.1"]), Watcher()
    async with following(settings(dns_pool("a", "b")), watcher, resolver):
        resolver.answers["a"] = []
        await watcher.until(["10.0.1.1:8000"])


async def test_starting_does_not_wait_for_a_name_to_appear() -> None:
    """Engines may start after the router; their instances are told when they resolve."""
    resolver, watcher = Resolver(a=OSError("no answer")), Watcher()
    async with following(settings(dns_pool("a")), watcher, resolver):
        assert watcher.told == [("p", [])]
        resolver.answers["a"] = ["10.0.0.1"]
        await watcher.until(["10.0.0.1:8000"])


async def test_starting_does_not_wait_for_a_resolver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool whose resolver answers late is filled late; the others are there at the start."""
    monkeypatch.setattr(discovery, "FIRST_LOOK_S", 0.05)
    answered, watcher = asyncio.Event(), Watcher()

    async def resolve(host: str) -> Sequence[Address]:
        if host == "slow":
            await answered.wait()
        return [ip_address("10.0.0.2" if host == "slow" else "10.0.0.1")]

    async with following(settings(dns_pool("slow"), dns_pool("fast", name="q")), watcher, resolve):
        assert watcher.told == [("q", ["10.0.0.1:8000"])]
        answered.set()
        await watcher.until(["10.0.0.2:8000"])
        assert [pool for pool, _ in watcher.told] == ["q", "p"]


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        (DnsFamily.AUTO, ["[fd00::1]:8000", "10.0.1.1:8000"]),
        (DnsFamily.V4_ONLY, ["10.0.0.1:8000", "10.0.1.1:8000"]),
        (DnsFamily.V6_ONLY, ["[fd00::1]:8000"]),
        (DnsFamily.V4_PREFERRED, ["10.0.0.1:8000", "10.0.1.1:8000"]),
        (DnsFamily.ALL, ["10.0.0.1:8000", "[fd00::1]:8000", "10.0.1.1:8000"]),
    ],
)
async def test_addresses_are_taken_as_envoys_lookup_family_takes_them(family: DnsFamily, expected: Names) -> None:
    """A host that Envoy does not have is ignored; AUTO, its default, takes IPv4 only where there is no IPv6."""
    watcher = Watcher()
    both = Resolver(both=["10.0.0.1", "fd00::1"], four=["10.0.1.1"])
    async with following(settings(dns_pool("both", "four", family=family)), watcher, both):
        assert watcher.last == expected


async def test_one_address_under_two_names_is_one_instance() -> None:
    """Envoy has one host for it."""
    watcher = Watcher()
    async with following(settings(dns_pool("a", "b")), watcher, Resolver(a=["10.0.0.1"], b=["10.0.0.1"])):
        assert watcher.last == ["10.0.0.1:8000"]


async def test_a_bug_in_one_look_does_not_end_the_following(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a resolver or a listener raises is logged, and the next look is made."""
    resolver, watcher = Resolver(a=["10.0.0.1"]), Watcher()
    failed = False

    def told(pool: str, instances: tuple[Instance, ...]) -> None:
        nonlocal failed
        if not failed:
            failed = True
            raise RuntimeError("a bug")
        watcher(pool, instances)

    async with following(settings(dns_pool("a")), told, resolver):
        resolver.answers["a"] = ["10.0.0.2"]
        await watcher.until(["10.0.0.2:8000"])
    assert "a bug" in caplog.text


# EDS files


def eds(*hosts: str, cluster: str = "p", **status: str) -> str:
    """An EDS file: hosts of a cluster, some with a health status."""
    endpoints = [
        {
            "endpoint": {"address": {"socket_address": {"address": host, "port_value": 8000}}},
            "health_status": status.get(f"h{n}", "UNKNOWN"),
            "metadata": {"filter_metadata": {"smetric": {"kv_events": "tcp://{address}:5557", "role": "decode"}}},
        }
        for n, host in enumerate(hosts)
    ]
    resource = {"@type": ASSIGNMENT, "cluster_name": cluster, "endpoints": [{"lb_endpoints": endpoints}]}
    return yaml.safe_dump({"version_info": "1", "resources": [resource]})


def replace(path: Path, text: str) -> None:
    """As Envoy demands it: write beside, then rename."""
    beside = path.with_suffix(".new")
    beside.write_text(text, "utf-8")
    beside.rename(path)


@pytest.fixture
def eds_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(discovery, "EDS_POLL_S", REFRESH_S)
    return tmp_path / "eds.yaml"


def eds_pool(path: Path, service: str = "p") -> Settings:
    return settings(PoolSettings("p", config.Discovery.EDS, (), eds_path=path, eds_service=service))


async def test_an_eds_file_is_read_and_read_again_when_it_is_replaced(eds_file: Path) -> None:
    """Hosts with their metadata; those that Envoy leaves out are left out."""
    replace(eds_file, eds("10.0.0.1", "10.0.0.2", h1="DRAINING"))
    watcher = Watcher()
    seen: list[Instance] = []

    def told(pool: str, instances: tuple[Instance, ...]) -> None:
        seen[:] = instances
        watcher(pool, instances)

    async with following(eds_pool(eds_file), told):
        assert watcher.told == [("p", ["10.0.0.1:8000"])]
        assert (seen[0].kv_events, seen[0].role.value) == ("tcp://10.0.0.1:5557", "decode")
        replace(eds_file, eds("10.0.0.1", "fd00::2"))
        await watcher.until(["10.0.0.1:8000", "[fd00::2]:8000"])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: replace(path, "resources: [\n"),
        lambda path: replace(path, eds("10.0.0.9", cluster="another")),
        lambda path: replace(path, eds("10.0.0.9").replace("role: decode", "role: decoder")),
        lambda path: replace(path, eds("10.0.0.9").replace("10.0.0.9", "some.host")),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["malformed", "of another cluster", "with a mistake", "a name", "gone", "a directory"],
)
async def test_an_eds_file_that_cannot_be_used_changes_nothing_and_is_reported_once(
    spoil: Callable[[Path], None], eds_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The pool keeps its instances until the file is good again."""
    replace(eds_file, eds("10.0.0.1"))
    watcher = Watcher()
    async with following(eds_pool(eds_file), watcher):
        spoil(eds_file)
        async with asyncio.timeout(PATIENCE_S):
            while not caplog.records:
                await asyncio.sleep(REFRESH_S)
        await asyncio.sleep(5 * REFRESH_S)
        assert len(caplog.records) == 1, caplog.text
        assert watcher.told == [("p", ["10.0.0.1:8000"])]
        with contextlib.suppress(OSError):
            os.rmdir(eds_file)  # noqa: PTH106
        replace(eds_file, eds("10.0.0.3"))
        await watcher.until(["10.0.0.3:8000"])


async def test_an_eds_file_may_come_later(eds_file: Path) -> None:
    """Until then the pool is empty."""
    watcher = Watcher()
    async with following(eds_pool(eds_file, service="svc"), watcher):
        assert watcher.told == [("p", [])]
        replace(eds_file, eds("10.0.0.1", cluster="svc"))
        await watcher.until(["10.0.0.1:8000"])


def test_the_settings_say_which_eds_file(tmp_path: Path) -> None:
    """`path_config_source` and the older `path`; `service_name` where it is given; relative to the YAML."""
    (tmp_path / "eds.yaml").write_text(eds("10.0.0.1", cluster="svc"), "utf-8")
    shipped = yaml.safe_load(Path("envoy/envoy.yaml").read_text("utf-8"))
    engines = shipped["static_resources"]["clusters"][0]
    engines |= {"type": "EDS", "load_assignment": None}
    engines["metadata"]["filter_metadata"]["smetric"]["model_dir"] = str(Path("loadgen/engine/model").resolve())
    for source in ({"path_config_source": {"path": "eds.yaml"}}, {"path": "eds.yaml"}):
        engines["eds_cluster_config"] = {"service_name": "svc", "eds_config": source}
        engines["metadata"]["filter_metadata"]["smetric"]["source"] = "routed"
        (tmp_path / "envoy.yaml").write_text(yaml.safe_dump(shipped), "utf-8")
        pool = config.load(tmp_path / "envoy.yaml").pools["engines"]
        assert (pool.discovery, pool.eds_path, pool.eds_service) == (config.Discovery.EDS, tmp_path / "eds.yaml", "svc")
        assert [endpoint.host for endpoint in pool.endpoints] == ["10.0.0.1"]
