"""One workload, live: through Envoy and our router, or through a peer in their place, to simulated engines.

Times are the model's: engines and clients run `1 / time_scale` times as fast as the model says, and the rows that are
kept are stretched again. What is not simulated, Envoy, routers, HTTP and tokenisers, takes its real time, and so counts
`1 / time_scale` times as much as it would. Lengths are `length_scale` of the profile's, with a model whose tokens stand
for as many (`30b-h20-quarter`), so that two cores can tokenise for all engines.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cpu import Meter, Usage
from bench.peers import VENV, Peer, PeerStack
from loadgen.engine.options import MODEL_DIR
from loadgen.replay import access_log, run
from loadgen.replay.replay import Options
from loadgen.replay.run import Gateway
from loadgen.replay.words import Words
from loadgen.results.measures import Measures, measure
from loadgen.results.records import Row, RunInfo, RunWriter, Slo, read_rows
from loadgen.simulation import simulate
from loadgen.simulation.scenario import Scenario
from loadgen.stack.parts import Engine
from loadgen.stack.processes import Child
from loadgen.stack.stack import REDIS, Stack
from loadgen.workloads.profiles import PROFILES
from loadgen.workloads.scaling import scaled
from loadgen.workloads.synthetic import generate_whole
from loadgen.workloads.trace import Dispatch, Trace

BLOCK = 16  # tokens, of the workload and of the caches: vLLM's default
MODEL = "tiny"  # whose tokenizer and template the engines have
# Texts come to whole messages, so a prompt may be a few tokens longer than the workload says.
SLACK = 1_024
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Engines and workload. Times in seconds of the model, lengths in tokens."""

    engines: int = 8
    model: str = "30b-h20-quarter"
    length_scale: float = 0.25
    local_tokens: int = 70_000  # an engine's cache
    time_scale: float = 0.25
    profile: str = "paper-trace-1"
    rate: float = 1.5  # requests a second of the whole cluster, once as many sessions begin as end
    seconds: float = 1_200.0
    warmup: float = 240.0
    seed: int = 1

    def workload(self) -> Trace:
        """Whole sessions from the beginning on, as caches are empty then; cut off at the end."""
        profile = PROFILES[self.profile]
        count = max(1, round(self.rate * self.seconds))
        block = round(BLOCK / self.length_scale)
        trace = generate_whole(profile, sessions=count, rate=self.rate, seed=self.seed, block_size=block)
        begun = [one for one in trace.requests if one.arrival_s < self.seconds]
        return scaled(replace(trace, requests=begun), self.length_scale)

    @property
    def slo(self) -> Slo:
        """The paper's, for tokens that stand for more than one."""
        paper = Slo()
        return Slo(paper.ttft_s, paper.ttft_per_token_s / self.length_scale, paper.tpot_s / self.length_scale)

    @property
    def names(self) -> list[str]:
        """Of the instances, as a simulation names them."""
        return [f"i{number:02d}" for number in range(self.engines)]

    @property
    def engine_options(self) -> list[str]:
        """Of `python -m loadgen engine`."""
        longest = round(PROFILES[self.profile].context * self.length_scale) + SLACK
        return [
            *("--profile", self.model, "--time-scale", str(self.time_scale), "--block-size", str(BLOCK)),
            *("--blocks", str(self.local_tokens // BLOCK), "--max-model-len", str(min(longest, self.local_tokens))),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a workload. The rest is of live runs only."""

    label: str
    measures: Measures
    errors: Mapping[str, int]
    late: float = 0.0  # share of requests that were sent over 50 ms (real ones) after their time
    usage: Usage | None = None
    router: Sequence[str] = ()  # the processes between client and engines

    @property
    def router_cpu_s(self) -> float:
        """CPU seconds of what stands between client and engines, a request."""
        spent = sum(self.usage.processes[name] for name in self.router) if self.usage else 0.0
        return spent / max(1, self.measures.requests)


@dataclass(frozen=True, slots=True)
class _Running:
    url: str
    engines: Sequence[Engine]
    router: Sequence[Child]
    access_log: Path | None


def play(setting: Setting, trace: Trace, policy: str | Peer, directory: Path, venv: Path = VENV) -> Result:
    """Start everything, replay the workload, end everything; the rows are kept in `directory`.

    Raises StackFailed and ProcessFailed, and KeyboardInterrupt when the replay was interrupted.
    """
    label = policy if isinstance(policy, str) else policy.label
    wall = setting.seconds * setting.time_scale
    tag = secrets.token_hex(6)
    options = Options(dispatch=Dispatch.TRACE, speed=1 / setting.time_scale, until_s=wall, model=MODEL, tag=tag)
    script = Words(trace, MODEL_DIR)
    with _started(setting, policy, directory / "logs", venv) as running:
        info = _info(setting, "replay", label, policy)
        info.instances = [engine.address for engine in running.engines]
        gateway = Gateway(url=running.url, headers={}, timeout_s=TIMEOUT_S)
        children = [*running.engines, *running.router]
        meter = Meter((child.name, child.pid) for child in children if child.pid)
        outcome = run.perform(gateway, trace, script, options, info, directory)
        usage = meter.read()
        if outcome.interrupted:
            raise KeyboardInterrupt
        if running.access_log:
            access_log.merge(directory, running.access_log, tag)
        rows = list(read_rows(directory))
        names = {engine.address: name for engine, name in zip(running.engines, setting.names, strict=True)}
    stretched = [_stretched(row, 1 / setting.time_scale, names) for row in rows]
    info = _keep(setting, _info(setting, "replay", label, policy), stretched, directory)
    return _result(
        info,
        stretched,
        late=outcome.counts.late / max(1, outcome.counts.sent),
        usage=usage,
        router=[child.name for child in running.router],
    )


def simulated(setting: Setting, trace: Trace, policy: str, directory: Path) -> Result:
    """The same workload, simulated; the rows are kept in `directory`."""
    scenario = Scenario(
        policy=policy,
        workload=setting.profile,
        rate=setting.rate,
        seed=setting.seed,
        instances=setting.engines,
        model=setting.model,
        block_size=BLOCK,
        local_tokens=setting.local_tokens,
        global_ratio=0.0,
        dispatch=Dispatch.TRACE,
        warmup_s=setting.warmup,
        measure_s=setting.seconds - setting.warmup,
    )
    rows = simulate(scenario, trace)
    return _result(_keep(setting, _info(setting, "simulate", policy, policy), rows, directory), rows)


@contextlib.contextmanager
def _started(setting: Setting, policy: str | Peer, directory: Path, venv: Path) -> Iterator[_Running]:
    if isinstance(policy, Peer):
        with PeerStack(policy, setting.engines, setting.engine_options, venv, directory=directory) as peers:
            yield _Running(peers.url, peers.engines, [peers.router], None)
        return
    with Stack(
        setting.engines,
        policy={"policy": policy},
        index=REDIS,
        engine_options=setting.engine_options,
        directory=directory,
    ) as stack:
        router = [child for child in (stack.envoy, stack.extproc, stack.redis) if child]
        yield _Running(stack.url, stack.engines, router, stack.access_log_path)


def _stretched(row: Row, factor: float, names: Mapping[str, str]) -> Row:
    """A row in the model's time, its instance by the name that a simulation gives it."""
    row.due_s *= factor
    row.sent_s *= factor
    row.first_s = None if row.first_s is None else row.first_s * factor
    row.end_s = None if row.end_s is None else row.end_s * factor
    row.instance = names.get(row.instance or "", row.instance)
    return row


def _info(setting: Setting, kind: str, label: str, policy: str | Peer) -> RunInfo:
    return RunInfo(
        kind=kind,
        label=label,
        policy=label,
        options=policy.settings if isinstance(policy, Peer) else {},
        workload=setting.profile,
        rate=setting.rate,
        seed=setting.seed,
        instances=setting.names,
        window=(setting.warmup, setting.seconds),
        settings={
            "model": setting.model,
            "local_tokens": setting.local_tokens,
            "time_scale": setting.time_scale,
            "length_scale": setting.length_scale,
            "slo_ttft_per_token_s": setting.slo.ttft_per_token_s,
            "slo_tpot_s": setting.slo.tpot_s,
            "dispatch": Dispatch.TRACE.value,
        },
    )


def _keep(setting: Setting, info: RunInfo, rows: Sequence[Row], directory: Path) -> RunInfo:
    with RunWriter(directory, info) as writer:
        for row in rows:
            writer.add(row)
    return info


def _result(
    info: RunInfo,
    rows: Sequence[Row],
    *,
    late: float = 0.0,
    usage: Usage | None = None,
    router: Sequence[str] = (),
) -> Result:
    errors: dict[str, int] = {}
    for row in rows:
        if row.error is not None:
            errors[row.error[:160]] = errors.get(row.error[:160], 0) + 1
    return Result(label=info.label, measures=measure(rows, info), errors=errors, late=late, usage=usage, router=router)
