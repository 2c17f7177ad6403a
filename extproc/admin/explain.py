"""Why a request goes where it goes: one decision that sends nothing, with everything that it was made from.

It asks the router itself, with a pool that notes nothing, and gives the load back at once: no count, no turn and no
speculation changes. Of a prompt only lengths are shown. Refuses to know HTTP (`http.py`) and the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from extproc.base.errors import ConfigError, ExtProcError
from extproc.base.headers import TURN
from extproc.base.model import Reason
from extproc.requests import apis
from extproc.requests.paths import Api, api_of
from extproc.routing import media
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from extproc.routing.pools.speculation import Speculation
from extproc.routing.query import Ask, explicit_turn
from extproc.routing.route_settings import RouteSettings, route_settings
from extproc.routing.router import Router

_GUARDED = "smetric"


@dataclass(frozen=True, slots=True)
class Guard:
    """One of SMetric's questions about the instance with the longest hit."""

    reason: str  # of a decision that this guard changes
    passes: bool
    arithmetic: str


@dataclass(frozen=True, slots=True)
class Row:
    """One instance as the decision saw it. Lengths in bytes."""

    hit_bytes: int
    in_flight: int
    unprefilled_bytes: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision and all that it was made from. Lengths in bytes."""

    path: str
    model: str | None
    pool: str
    policy: str
    options: Mapping[str, float]
    turn: int = 0
    prompt_bytes: int = 0
    history_bytes: int = 0
    prompt_blocks: int = 0
    degraded: str | None = None
    instances: Mapping[str, Row] = field(default_factory=dict)
    mean_load: float = 0.0
    guards: Sequence[Guard] = ()
    choice: str | None = None
    prefill: str | None = None
    reason: str = ""
    refusal: str | None = None  # what the client would be told where no instance can serve it

    def text(self) -> str:
        """For people, line by line."""
        return "\n".join(self._lines())

    def json(self) -> Mapping[str, Any]:
        """For programs."""
        return asdict(self)

    def _lines(self) -> Iterator[str]:
        api = api_of(self.path)
        read_as = f", read as {api}" if api is not None and api != self.path else ""
        yield f"api        {self.path}{read_as}{f', model {self.model}' if self.model else ''}"
        options = ", ".join(f"{name} {value:g}" for name, value in self.options.items())
        yield f"pool       {self.pool} by {self.policy}{f' ({options})' if options else ''}"
        yield f"turn       {self.turn}"
        yield f"prompt     {self.prompt_bytes} bytes, of which {self.prompt_blocks} whole prompt blocks are looked up"
        yield f"history    {self.history_bytes} bytes"
        if self.degraded:
            yield f"degraded   {self.degraded}: load alone decides"
        for name, row in self.instances.items():
            mark = "->" if name in (self.choice, self.prefill) else "  "
            load = f"{row.in_flight} in flight, {row.unprefilled_bytes} bytes to prefill"
            yield f"{mark} {name:<24} hit {row.hit_bytes} bytes, {load}"
        if self.instances:
            yield f"mean load  {self.mean_load:g}"
        for guard in self.guards:
            yield f"guard      {guard.reason}: {'passes' if guard.passes else 'objects'}, {guard.arithmetic}"
        if self.prefill:
            yield f"prefill    {self.prefill}"
        yield f"choice     {self.choice or 'none'}, {self.reason}"
        if self.refusal:
            yield f"refusal    {self.refusal}"


class _Silent(Speculation):
    """A pool's speculation, without noting anything."""

    def __init__(self, speculation: Speculation) -> None:
        super().__init__()
        self._of = speculation

    @property
    def mark(self) -> int:
        """As the pool's own."""
        return self._of.mark

    def match(
        self, chain: Sequence[int], hits: Mapping[str, int], now: float, mark: int | None = None
    ) -> Mapping[str, int]:
        """As the pool's own."""
        return self._of.match(chain, hits, now, mark)

    def note(self, instance: str, chain: Sequence[int], known: int, now: float) -> None:
        """Nothing was sent."""


class Explainer:
    """Explains decisions of a router over its pools."""

    def __init__(self, router: Router, loads: Loads, pools: Mapping[str, Pool], default: RouteSettings | None) -> None:
        self._router = router
        self._loads = loads
        self._pools = pools
        self.default = default  # what the filter says; another configuration may say another thing

    async def answer(self, about: Mapping[str, str], body: bytes, *, now: float) -> Explanation:
        """Explain a body. `about` may tell its `path`, its turn and the route's `x-smetric-*`; by default it is a chat
        that comes by the filter's own settings. Raises ConfigError for settings that no route could have."""
        metadata = {key: value for key, value in about.items() if key != TURN}
        ask = Ask(about.get("path", Api.CHAT), body or None, None if body else Reason.NO_BODY, explicit_turn(about))
        return await self.explain(route_settings(metadata, self.default), ask, now=now)

    async def explain(self, route: RouteSettings, ask: Ask, *, now: float) -> Explanation:
        """The decision about a request that comes by this route. Raises ConfigError where no pool is known."""
        pools = [self._pools[name] for name in route.clusters if name in self._pools]
        if not pools:
            raise ConfigError(f"no pool {route.cluster!r}: known are {', '.join(self._pools)}")
        pool, read = await self._router.read(pools, ask)
        quiet = replace(
            pool, speculation=_Silent(pool.speculation), ties=pool.ties.copy(), few_shot=pool.few_shot.copy()
        )
        model = apis.model_of(bytes(ask.body)) if ask.body is not None else None
        begun = Explanation(ask.path.partition("?")[0], model, pool.name, route.policy, route.options)
        try:
            routed = await self._router.pick(quiet, route, ask, read, now=now)
        except ExtProcError as error:
            return replace(begun, reason=error.slug, refusal=str(error))
        routed.ticket.release()
        query, choice = routed.query, routed.choice
        names = [instance.name for instance in pool.candidates(now, ask.subset)]
        hits = pool.speculation.match(query.chain, routed.held, now)
        loads = zip(*self._loads.view(pool.name, names), strict=True)
        rows = {
            name: Row(media.hit(pool, query, name, hits.get(name, 0)), requests, waiting)
            for name, (requests, waiting) in zip(names, loads, strict=True)
        }
        guarded = route.policy == _GUARDED and query.turn > 0 and query.degraded is None and choice.prefill is None
        return replace(
            begun,
            turn=query.turn,
            prompt_bytes=query.prompt,
            history_bytes=query.history,
            prompt_blocks=len(query.chain),
            degraded=query.degraded.value if query.degraded and not query.keeper else None,
            instances=rows,
            mean_load=choice.mean_load,
            guards=_guards(rows, query.history, choice.mean_load, route.options) if guarded else (),
            choice=choice.instance.name,
            prefill=None if choice.prefill is None else choice.prefill.name,
            reason=choice.reason.value,
        )


def _guards(rows: Mapping[str, Row], history: int, mean: float, options: Mapping[str, float]) -> Sequence[Guard]:
    """The arithmetic of policies/smetric.py for the instance that it would stick to."""
    longest = max(row.hit_bytes for row in rows.values())
    load = min(row.in_flight for row in rows.values() if row.hit_bytes == longest)
    overload, floor, ratio = (options[name] for name in ("overload", "overload_floor", "hit_ratio"))
    limit, least = max(overload * mean, floor), ratio * history
    return (
        Guard(
            "overloaded",
            longest == 0 or load <= limit,
            f"load {load} <= max(overload {overload:g} * mean load {mean:g}, floor {floor:g}) = {limit:g}",
        ),
        Guard(
            "evicted",
            longest > least,
            f"hit {longest} > hit_ratio {ratio:g} * history {history} = {least:g}",
        ),
    )
