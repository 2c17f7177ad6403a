"""From a request to what it asks of the caches: parsed, rendered, hashed. Pure, and it never fails.

Owns what becomes of each way in which a request cannot be read, and the turn: the client's own word
(`x-smetric-turn`), else the assistant's messages, else the replies found in the text. Refuses to know instances.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from extproc.base import blocks
from extproc.base.errors import BodyTooCostly, RenderError, TakesLong, UnreadableBody, UnsupportedApi
from extproc.base.headers import TURN
from extproc.base.model import Prompt, Reason, Request
from extproc.requests import apis, paths
from extproc.requests.cost import rendering_us
from extproc.requests.reply_keys import asked, turns
from extproc.routing import lora
from extproc.routing.disaggregation.bodies import divisible
from extproc.routing.lora import Announced
from extproc.routing.pools.admission import Subset
from extproc.routing.pools.few_shot import MOST_EXAMPLES, Spoken
from extproc.routing.pools.pool import Pool

_log = logging.getLogger(__name__)

MAX_KEYS = 65_536  # of a prompt: 16 MB in blocks of 256 bytes; what follows is counted, and not looked up
MAX_TURN_DIGITS = 9  # a longer number is no number of turns


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as it came: its body, or why there is none, and the instances that the gateway allows."""

    path: str = ""
    body: bytes | memoryview | None = None
    degraded: Reason | None = None  # why there is no body
    turn: int | None = None  # the client's own word; None where it said nothing
    models: Sequence[str] = ()  # that a body which is not read seems to ask for
    subset: Subset | None = None  # the gateway's hint: choose among these


@dataclass(frozen=True, slots=True)
class Media:
    """A prompt with images, audio or video. Its chain goes on behind the first with a stand-in for each: which media
    they are, and whether an engine's events can be compared with it at all, is another matter (`media.py`)."""

    plain: int  # leading keys of the chain that stand before the first medium
    places: Sequence[tuple[int, str]]  # where each medium stands in the prompt, in bytes, and what it is
    turns: Sequence[int]  # a key for each reply since then, and for the whole: what it answered (`reply_keys.py`)
    ends: Sequence[int]  # where each reply ends in the prompt, in bytes; the last one ends the history
    begin: int  # where the first of them begins
    sent: Mapping[str, int] = field(default_factory=dict)  # how many of these replies an instance was asked for

    @property
    def replies(self) -> Sequence[int]:
        """The keys of the replies that are there."""
        return self.turns[:-1]


@dataclass(frozen=True, slots=True)
class Query:
    """What a request asks of the caches: its turn, its lengths in bytes, and the keys of its prompt blocks."""

    turn: int = 0
    history: int = 0
    prompt: int = 0
    chain: Sequence[int] = ()
    media: Media | None = None
    degraded: Reason | None = None  # why this is all that is known: decide by load alone
    divisible: bool = False  # one instance may prefill for another
    failed: frozenset[str] = frozenset()  # names of instances that could not prefill it
    response: str | None = None  # the stored response that it refers to: only who keeps that can serve it
    keeper: str | None = None  # name of the instance that keeps it
    stores: bool = False  # the engine may keep the response, and others may refer to it
    # Where the model is a LoRA adapter on some instances only (`lora.py`), `chain` counts there, ...
    base_chain: Sequence[int] = ()  # ... and these keys on the others
    loaded: frozenset[str] = lora.NOWHERE  # where that is, by name
    spoken: Spoken | None = None  # what may show that its replies are examples; None where they are not

    def chain_on(self, instance: str) -> Sequence[int]:
        """The keys that its prompt has on an instance, by name."""
        return self.base_chain if self.base_chain and instance not in self.loaded else self.chain


def explicit_turn(headers: Mapping[str, str]) -> int | None:
    """The turn that a framework tags its requests with; None where there is no tag, or no number in it."""
    text = headers.get(TURN, "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_TURN_DIGITS else None


def pool_named(pools: Sequence[Pool], announced: Callable[[str], Announced], models: Sequence[str]) -> Pool:
    """The pool of the first of these models that any serves; the first pool where none does."""
    served = [(pool, model) for model in models for pool in pools]
    known = (pool for pool, model in served if model in pool.models or announced(pool.name).get(model))
    return next(known, pools[0])


def pool_for(pools: Sequence[Pool], announced: Callable[[str], Announced], body: bytes | None) -> Pool:
    """The pool that serves the request's model; the first where none does, whose engines will refuse it.

    `announced` tells the LoRA adapters that a pool's engines did; the pool with most engines that have it is taken.
    """
    model = apis.model_of(body) if body is not None and len(pools) > 1 else None
    if model is None:
        return pools[0]
    for pool in pools:
        if model in pool.models:
            return pool
    return max(pools, key=lambda pool: len(announced(pool.name).get(model, ())))


def read(pool: Pool, announced: Announced, ask: Ask, most_us: float = math.inf) -> Query:
    """Parse, render and hash a request. Whatever goes wrong is the query's `degraded`.

    `announced` are the LoRA adapters that the pool's engines did. Raises TakesLong, and nothing else, where the
    template would take more than about `most_us` microseconds.
    """
    if ask.body is None:
        return Query(ask.turn or 0, degraded=ask.degraded, response=paths.response_in(ask.path))
    body = bytes(ask.body)
    query = _of_body(pool, announced, ask, body, most_us)
    if query.degraded is None and pool.disaggregated:
        return replace(query, divisible=divisible(ask.path, body))
    return query


def _of_body(pool: Pool, announced: Announced, ask: Ask, body: bytes, most_us: float) -> Query:
    path, turn = ask.path, ask.turn
    known = turn or 0
    try:
        request = apis.parse(path, body, pool.beginnings)
        known = request.turn if turn is None else turn
        if request.previous_response is not None:
            known_by = request.previous_response if len(request.previous_response) <= paths.MAX_ID else None
            return Query(known, degraded=Reason.UNKNOWN_RESPONSE, response=known_by, stores=request.stored)
        if not request.prefills:
            return Query(known, degraded=Reason.NO_PREFILL)
        if most_us < math.inf and rendering_us(request, most_us, collects=pool.renderer.collects) > most_us:
            raise TakesLong("many messages or tools")
        prompt = pool.renderer.render(request)
        roots = lora.roots(pool, announced, request.model, request.cache_salt)
        text = prompt.data[: prompt.matchable] if prompt.media is None else prompt.media.data
        text = text[: MAX_KEYS * pool.block_bytes]
        chain = blocks.extend(text, roots.root, pool.block_bytes)
        base_chain = blocks.extend(text, roots.base, pool.block_bytes) if roots.base is not None else ()
        media = _media(pool, request, prompt)
        spoken = _spoken(request, roots.root) if turn is None and media is None else None
    except TakesLong:
        raise
    except (BodyTooCostly, MemoryError):
        return Query(known, degraded=Reason.BODY_TOO_COSTLY)
    except UnreadableBody:
        return Query(known, degraded=Reason.UNREADABLE_BODY)
    except UnsupportedApi:
        return Query(known, degraded=Reason.UNSUPPORTED_API, response=paths.response_in(path))
    except RenderError:
        return Query(known, degraded=Reason.RENDER_FAILED)
    except Exception:
        _log.exception("a bug in reading a request of pool %s; it is routed by load alone", pool.name)
        return Query(known, degraded=Reason.INTERNAL_ERROR)
    history, length, whole = prompt.history, len(prompt.data), prompt.matchable
    if prompt.media is not None:
        history, length, whole = prompt.media.history, len(prompt.media.data), len(prompt.media.data)
    if turn and not history:
        # A follow-up by the client's own word, in which no reply can be seen: most of such a prompt is its history.
        history = whole
    replies = request.turn or prompt.replies
    turns_ = replies if turn is None else turn
    if pool.secret is None:  # no key would be right
        return Query(turns_, history, length, degraded=Reason.INDEX_UNAVAILABLE, stores=request.stored)
    return Query(
        turns_,
        history,
        length,
        chain,
        media,
        stores=request.stored,
        base_chain=base_chain,
        loaded=roots.loaded,
        spoken=spoken,
    )


def _spoken(request: Request, seed: int) -> Spoken | None:
    return None if request.turn > MOST_EXAMPLES else Spoken(*asked(request.messages, seed))


def _media(pool: Pool, request: Request, prompt: Prompt) -> Media | None:
    if prompt.media is None:
        return None
    root = pool.root(request.model, request.cache_salt)
    *replies, whole = turns(request.messages, root, prompt.data[: prompt.matchable])
    history = prompt.media.history
    ends = [history * turn.end // replies[-1].end for turn in replies]
    begin = history * replies[0].begin // replies[-1].end if replies else len(prompt.media.data)
    keys = [turn.key for turn in (*replies, whole)]
    return Media(prompt.media.head // pool.block_bytes, prompt.media.media, keys, ends, begin)
