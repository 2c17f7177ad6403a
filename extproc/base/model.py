"""The nouns of the product. Immutable, free of I/O; every other module speaks in these.

Lengths are in bytes of the rendered prompt unless a name says otherwise; loads are requests in flight
(or bytes still to prefill); a *prompt block* is `prompt_block_bytes` bytes of the rendered prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    """What an instance does: everything, or one half of a disaggregated pair."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


class Disaggregation(StrEnum):
    """Who sends the prefill request of a disaggregated pool: a sidecar of the decode instance, or this process."""

    SIDECAR = "sidecar"
    FILTER = "filter"


class Source(StrEnum):
    """What feeds the index of a pool: the engines' KV events, or what the router itself sent where."""

    EVENTS = "events"
    ROUTED = "routed"


class Engine(StrEnum):
    """Whose KV events a pool publishes."""

    VLLM = "vllm"
    SGLANG = "sglang"


class Reason(StrEnum):
    """Why a decision was made. A closed list: metrics, dynamic metadata and documents use these words and no others."""

    # SMetric
    FIRST_TURN = "first_turn"
    STICK = "stick"
    OVERLOADED = "overloaded"
    EVICTED = "evicted"
    # every other policy
    SCORED = "scored"
    # whatever the policy
    PREVIOUS_RESPONSE = "previous_response"  # the instance that keeps the response which the request refers to
    # degradations: decided by load alone, because ...
    NO_BODY = "no_body"  # ... the request carries none
    BODY_NOT_SENT = "body_not_sent"  # ... Envoy does not show it before the destination is needed (STREAMED, NONE)
    BODY_TOO_LARGE = (
        "body_too_large"  # ... it is longer than we collect (FULL_DUPLEX_STREAMED); its rest streams through
    )
    BODY_TOO_COSTLY = "body_too_costly"  # ... reading it would take too long, or too much memory
    UNREADABLE_BODY = "unreadable_body"  # ... it is not JSON of the shape that its path needs
    UNSUPPORTED_API = "unsupported_api"  # ... the path is no API that we render
    RENDER_FAILED = "render_failed"  # ... the chat template refused it
    NO_PREFILL = "no_prefill"  # ... the engine will only count its tokens, and cache nothing
    UNKNOWN_RESPONSE = "unknown_response"  # ... no router knows which instance keeps the response that it refers to
    INDEX_UNAVAILABLE = "index_unavailable"  # ... the index failed or missed its budget
    PREFILL_FAILED = "prefill_failed"  # ... no prefill instance computed the prompt: the decode instance does
    INTERNAL_ERROR = "internal_error"  # ... of a bug of the router; see its log
    # no destination at all
    NO_POOL = "no_pool"  # the Envoy YAML has no cluster of that name: Envoy's own policy decides
    NO_INSTANCE = "no_instance"  # the pool is empty, or holds none of the gateway's subset: 503
    SHED = "shed"  # every candidate has as many requests in flight as the route allows: 429
    BODY_TIMEOUT = (
        "body_timeout"  # the body did not end in time (FULL_DUPLEX_STREAMED, where no timer of Envoy's runs): 408
    )


@dataclass(frozen=True, slots=True)
class Instance:
    """One scheduler with one KV cache: an endpoint of the pool's cluster, or one data-parallel rank of it."""

    address: str  # "ip:port", IPv6 bracketed: what Envoy knows the host by
    rank: int | None = None  # data-parallel rank; None where the endpoint has only one
    role: Role = Role.BOTH
    kv_events: str | None = None  # ZMQ address of this rank's KV events
    kv_replay: str | None = None
    priority: int = 0  # Envoy's: serves only while no instance of a lower number can

    @property
    def name(self) -> str:
        """The key of this instance in index, loads and metrics: the address, and `/rank` where there are several."""
        return self.address if self.rank is None else f"{self.address}/{self.rank}"


@dataclass(frozen=True, slots=True)
class Gateway:
    """The Envoy that asks us. Limits are Envoy's own by default; what our answers make of a request is held to them."""

    overrides: bool | None = None  # whether it obeys where we ask for another processing mode; None: not known
    max_headers: int = 100  # header lines of a request
    max_header_bytes: int = 60 * 1024  # of their names and values


class Knowledge(StrEnum):
    """How well the index knows an instance's cache.

    All that was known is forgotten when an instance becomes `unknown`. What is stored from then on, whole prompts only,
    is known again and is a hit; until it is `exact` there may be more in the cache than that, but not less.
    """

    EXACT = "exact"  # every event since the cache was empty has been applied
    RECOVERING = "recovering"  # a gap is being replayed
    UNKNOWN = "unknown"  # not heard of yet, unreachable, or a gap that nothing can close


@dataclass(frozen=True, slots=True)
class EventReport:
    """Where the follower of one instance's events stands: what `/debug/state` shows under `events`."""

    state: Knowledge
    sequence: int  # of the newest batch applied; -1 before the first
    lag_s: float  # age of the newest batch when it was applied
    cause: str = ""  # why the events or their replay are out of reach, once that has lasted a while
    for_s: float = 0.0  # seconds that it has been in this state
    silent_s: float | None = None  # seconds since the newest batch was applied; None before the first


@dataclass(frozen=True, slots=True)
class Request:
    """A parsed request body: what the policy and the prompt renderer need, and nothing else of it."""

    model: str | None
    turn: int  # assistant replies already in the request
    messages: Sequence[Mapping[str, Any]]  # normalised as the engine normalises them
    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)  # chat_template_kwargs and what the engine adds
    cache_salt: str | None = None
    stream: bool = False
    add_special_tokens: bool = False  # the tokenizer's own BOS and EOS around what the template wrote
    prompt: str | Sequence[int] | None = None  # in place of messages: a text, or token ids
    anthropic: bool = False  # of /v1/messages: some of what vLLM makes of it depends on the template
    prefills: bool = True  # False: the engine only counts the tokens, and caches nothing
    stored: bool = False  # the engine may keep its response, for others to refer to
    previous_response: str | None = None  # the stored response that this one continues
    size: int = 0  # bytes of its body


@dataclass(frozen=True, slots=True)
class MediaText:
    """A prompt with media, in the form in which it is compared with events: from its first medium on loosely, with a
    stand-in for each (`base/media.py`). Lengths and places are in bytes of `data`."""

    data: bytes
    history: int  # as in Prompt
    head: int  # length of the text before the first medium
    media: Sequence[tuple[int, str]]  # of each medium where it stands, and what it is: role of its message and kind


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt: exactly the bytes that the engine tokenises."""

    data: bytes
    history: int  # length of the carried history: up to the end of the last assistant message; 0 without one
    matchable: int  # length up to the first image, video or audio; the whole prompt without one
    replies: int = 0  # assistant replies found in the text, where it came without messages
    media: MediaText | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision and everything an operator may ask about it.

    In a disaggregated pool `instance` decodes; hits and loads are those of `prefill`, loads in bytes to prefill.
    """

    instance: Instance  # the destination
    fallbacks: tuple[Instance, ...]  # where Envoy retries, by least load
    policy: str
    reason: Reason
    turn: int
    hit: int  # bytes of the prompt cached by the chosen instance
    best_hit: int  # the highest of all instances
    history: int
    prompt: int
    load: float  # of the chosen instance, before this request is counted
    mean_load: float
    prefill: Instance | None = None  # computes the prompt for `instance`; None where that does it itself

    @property
    def computes(self) -> Instance:
        """The instance that computes the prompt, and has it cached afterwards."""
        return self.prefill or self.instance
