"""An engine's HTTP: is it well, what does it serve, and does it make the prompts that we make?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout

from extproc.base.errors import ConfigError, ExtProcError
from extproc.cli.check_live.findings import Finding, failed, ok, unknown
from extproc.cli.check_live.network import TRY_S, Unreachable, attempt
from extproc.config import PoolSettings
from extproc.prompts.renderer import Renderer
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from extproc.requests import apis
from extproc.requests.paths import Api

_HEALTH: Final = "/health"
_OK: Final = (range(200, 201),)
_MOST: Final = 1 << 20  # bytes of an answer
_SHOWN: Final = 40  # bytes around a difference
# No user's words, and a turn of each kind that every template takes.
_CHAT: Final = (("user", "How many l are in hello?"), ("assistant", "Two."), ("user", "And in  world\t?"))

_ADDRESS_REMEDY: Final = "start the engine, or correct the endpoint's address and port"


class _Card(msgspec.Struct):
    id: str
    parent: str | None = None  # of an adapter: the model that it was loaded on


class _Models(msgspec.Struct):
    data: list[_Card]


class _Tokens(msgspec.Struct):
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Served:
    """What one engine was found to serve."""

    what: str
    models: frozenset[str]  # without adapters; empty where it does not say
    findings: Sequence[Finding]


class Model:
    """A pool's model files, as far as they can be read."""

    def __init__(self, directory: Path) -> None:
        """Raises ConfigError."""
        self.directory = directory
        self._renderer = Renderer.load(directory)
        self._vocabulary = Vocabulary.load(directory)

    def prompt(self, body: bytes) -> bytes:
        """As we render it. Raises ExtProcError."""
        return self._renderer.render(apis.parse(Api.CHAT.value, body)).data

    def text(self, tokens: Sequence[int]) -> bytes:
        """Of an engine's tokens. Raises ExtProcError for one that these files lack."""
        return self._vocabulary.decode(tokens)


def model(pool: PoolSettings) -> tuple[Model | None, Finding | None]:
    """The pool's model files."""
    if pool.model_dir is None:
        return None, None
    what = f"{pool.name} model_dir {pool.model_dir}"
    try:
        return Model(pool.model_dir), ok(what, "tokenizer and chat template are there")
    except ConfigError as error:
        return None, failed(what, str(error), "copy tokenizer.json and the chat template from the model's repository")


async def engine(http: ClientSession, pool: PoolSettings, address: str, files: Model | None) -> Served:
    """Ask the engine at this address."""
    what = f"{pool.name} {address}"
    base = f"{'https' if pool.tls else 'http'}://{address}"
    first = await attempt(_health(http, base, pool, what), lambda reason: failed(what, reason, _ADDRESS_REMEDY))
    if first.remedy == _ADDRESS_REMEDY:
        return Served(what, frozenset(), (first,))
    names, listed = await attempt(_models(http, base, pool, what), lambda reason: (frozenset(), unknown(what, reason)))
    findings = [first, listed]
    if files is not None and names:
        findings.append(
            await attempt(
                _prompts(http, base, min(names), files, what),
                lambda reason: unknown(what, f"/tokenize cannot be compared: {reason}"),
            )
        )
    return Served(what, names, findings)


def strangers(found: Sequence[Served]) -> list[Finding]:
    """Engines of one pool that serve another model than most of it does."""
    known = [served for served in found if served.models]
    common, count = Counter(served.models for served in known).most_common(1)[0] if known else (frozenset(), 0)
    return [
        failed(
            served.what,
            f"serves {_list(served.models)}, and {count} of its pool {_list(common)}",
            "take it out of the cluster, or start it with the same --served-model-name",
        )
        for served in known
        if count > 1 and not served.models & common
    ]


async def _health(http: ClientSession, base: str, pool: PoolSettings, what: str) -> Finding:
    check = pool.health_check
    path, host = (check.path, check.host) if check else (_HEALTH, "")
    status, _ = await _ask(http, "GET", base + path, headers={"host": host} if host else {})
    if any(status in statuses for statuses in (check.statuses if check else _OK)):
        return ok(what, f"answers GET {path} with {status}")
    if check is None and status == 404:
        return ok(what, f"answers; it has no {path}")
    remedy = "look at the engine's log" + ("; the router does not choose it until this passes" if check else "")
    return failed(what, f"answers GET {path} with {status}", remedy)


async def _models(http: ClientSession, base: str, pool: PoolSettings, what: str) -> tuple[frozenset[str], Finding]:
    status, body = await _ask(http, "GET", f"{base}/v1/models")
    if status in (401, 403):
        return frozenset(), unknown(what, "wants a key before it names its models")
    try:
        cards = msgspec.json.decode(body, type=_Models).data if status == 200 else []
    except msgspec.MsgspecError:
        cards = []
    names = frozenset(card.id for card in cards if card.parent is None)
    if not names:
        return names, unknown(what, f"/v1/models names no model (status {status})")
    if pool.models and not names & pool.models:
        remedy = "correct models in the cluster's metadata, or the engine's --served-model-name"
        return names, failed(what, f"serves {_list(names)}, and models of the pool is {_list(pool.models)}", remedy)
    return names, ok(what, f"serves {_list(names)}")


async def _prompts(http: ClientSession, base: str, name: str, files: Model, what: str) -> Finding:
    body = msgspec.json.encode({"model": name, "messages": [{"role": role, "content": text} for role, text in _CHAT]})
    status, answer = await _ask(
        http, "POST", f"{base}/tokenize", data=body, headers={"content-type": "application/json"}
    )
    try:
        tokens = msgspec.json.decode(answer, type=_Tokens).tokens if status == 200 else None
    except msgspec.MsgspecError:
        tokens = None
    if tokens is None:
        return unknown(what, f"has no /tokenize to compare prompts with (status {status})")
    remedy = (
        f"copy tokenizer.json and the chat template of {name} to {files.directory}; an engine's --chat-template too"
    )
    try:
        ours, theirs = files.prompt(body), files.text(tokens)
    except ExtProcError as error:
        return failed(what, f"its prompts cannot be compared with model_dir's: {error}", remedy)
    if ours == theirs:
        return ok(what, "makes the same prompt as model_dir")
    place = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), 0)
    difference = f"at byte {place} {_near(theirs, place)} where we have {_near(ours, place)}"
    return failed(what, f"makes another prompt than model_dir: {difference}", remedy)


async def _ask(
    http: ClientSession, method: str, url: str, *, headers: Mapping[str, str] | None = None, data: bytes | None = None
) -> tuple[int, bytes]:
    """Status and body. Raises Unreachable and OSError."""
    try:
        timeout = ClientTimeout(total=TRY_S)
        # An engine's certificate is Envoy's business; here it is asked who it is, and nothing is told.
        async with http.request(method, url, headers=headers, data=data, timeout=timeout, ssl=False) as answer:
            return answer.status, await answer.content.read(_MOST)
    except OSError:
        raise
    except ClientError as error:
        raise Unreachable(f"it does not speak HTTP as expected ({type(error).__name__})") from error


def _near(prompt: bytes, place: int) -> str:
    return repr(prompt[max(0, place - 8) : place + _SHOWN].decode(errors="replace"))


def _list(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
