"""Every Prometheus metric of the product, in one table. Edges import and set them; the core returns values instead.

Sums of bytes give ratios in PromQL: `rate(smetric_hit_bytes_total[5m]) / rate(smetric_prompt_bytes_total[5m])`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics import MetricWrapperBase

disable_created_metrics()  # type: ignore[no-untyped-call]  # half of the page would be times of creation
REGISTRY = CollectorRegistry()
Labelled = TypeVar("Labelled", bound=MetricWrapperBase)

# Decisions
DECISIONS = Counter(
    "smetric_decisions", "Decisions, by why they were made.", ["pool", "policy", "reason"], registry=REGISTRY
)
DECISION_SECONDS = Histogram(
    "smetric_decision_seconds",
    "Time from the last byte of a request body to the decision.",
    ["pool"],
    buckets=(0.0002, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.5),
    registry=REGISTRY,
)
PROMPT_BYTES = Counter("smetric_prompt_bytes", "Bytes of rendered prompts.", ["pool"], registry=REGISTRY)
HIT_BYTES = Counter("smetric_hit_bytes", "Bytes that the chosen instance had cached.", ["pool"], registry=REGISTRY)
BEST_HIT_BYTES = Counter("smetric_best_hit_bytes", "Bytes that the best instance had.", ["pool"], registry=REGISTRY)
SHADOW_DECISIONS = Counter(
    "smetric_shadow_decisions",
    "Decisions that a shadow policy watched, by whether it would have chosen the same instance.",
    ["pool", "policy", "agrees"],
    registry=REGISTRY,
)
SHADOW_HIT_BYTES = Counter(
    "smetric_shadow_hit_bytes",
    "Bytes that a shadow policy's choice had cached; smetric_hit_bytes less this is its extra prefill.",
    ["pool", "policy"],
    registry=REGISTRY,
)

# Requests
STREAMS = Gauge("smetric_streams", "ext_proc streams open: one for each request in flight.", registry=REGISTRY)
IN_FLIGHT = Gauge("smetric_in_flight", "Requests in flight.", ["pool", "instance"], registry=REGISTRY)
UNPREFILLED_BYTES = Gauge(
    "smetric_unprefilled_bytes",
    "Prompt bytes that are left to prefill for the requests in flight: less with each chunk that an engine tells of; "
    "without its events, all that was not cached, until a request ends.",
    ["pool", "instance"],
    registry=REGISTRY,
)
UNPREFILLED_SECONDS = Gauge(
    "smetric_unprefilled_seconds",
    "How long these bytes take to prefill, by the pace that is known of the pool.",
    ["pool", "instance"],
    registry=REGISTRY,
)
PROMPT_SECONDS = Histogram(
    "smetric_prompt_seconds",
    "Time from a decision to the event that the prompt's last block is stored: the time to the first token, as the "
    "engine lives it.",
    ["pool", "instance"],
    buckets=(0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60),
    registry=REGISTRY,
)
USUAL_PROMPT_SECONDS = Gauge(
    "smetric_usual_prompt_seconds",
    "The median of that time over the last 16 prompts of the instance; absent before the first.",
    ["pool", "instance"],
    registry=REGISTRY,
)
UNHEALTHY = Gauge(
    "smetric_unhealthy",
    "1 for an instance that fails the health check of its cluster: it is not chosen.",
    ["pool", "instance"],
    registry=REGISTRY,
)
PREFILLS = Counter(
    "smetric_prefills",
    "Prefill requests that we sent to another instance, by how they ended.",
    ["pool", "outcome"],
    registry=REGISTRY,
)
PREFILL_SECONDS = Histogram(
    "smetric_prefill_seconds",
    "Time from the decision to the answer of a prefill request that we sent.",
    ["pool"],
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60),
    registry=REGISTRY,
)
SERVED_ELSEWHERE = Counter(
    "smetric_served_elsewhere", "Requests that Envoy sent to another host than chosen.", ["pool"], registry=REGISTRY
)
UNCOUNTED = Counter(
    "smetric_uncounted",
    "Requests whose load was given back before they ended, by cause: Envoy closed the stream early, or a tunnel.",
    ["pool", "cause"],
    registry=REGISTRY,
)
HEADERS_LEFT_OUT = Counter(
    "smetric_headers_left_out",
    "Headers of ours for which a request had no room below Envoy's limits; the metadata steers without them.",
    ["pool", "header"],
    registry=REGISTRY,
)
REMEMBERED_BYTES = Gauge(
    "smetric_remembered_bytes",
    "Memory of bodies that were read, whose follow-ups are parsed from where they are new (--remember-mib).",
    registry=REGISTRY,
)
BAD_ROUTES = Counter(
    "smetric_bad_routes", "Streams whose x-smetric-* metadata could not be used; the default was.", registry=REGISTRY
)
RELOADS = Counter(
    "smetric_reloads",
    "Times that the Envoy YAML was read again, by outcome: applied, unchanged, refused.",
    ["outcome"],
    registry=REGISTRY,
)
RELOAD_REFUSED = Gauge(
    "smetric_reload_refused", "1 while an edit of the Envoy YAML is not used, for it is wrong.", registry=REGISTRY
)
REFUSED_STREAMS = Counter(
    "smetric_refused_streams", "Streams refused because they did not show the shared token.", registry=REGISTRY
)
LOOP_STALL_SECONDS = Histogram(
    "smetric_loop_stall_seconds",
    "How late a timer came that is due a hundred times a second: everything of the process waited so long. By cause: "
    "work of the loop's own, or the wait for a processor.",
    ["cause"],
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
    registry=REGISTRY,
)
LOG_LINES_LOST = Counter(
    "smetric_log_lines_lost",
    "Lines of the log that could not be written: a full disk, a reader that is gone or too slow.",
    registry=REGISTRY,
)
EXCEPTIONS = Counter("smetric_exceptions", "Bugs caught before they cost a request.", ["where"], registry=REGISTRY)

# KV events and the index
EVENTS = Counter(
    "smetric_events", "KV events applied: stored, removed or cleared.", ["pool", "instance", "kind"], registry=REGISTRY
)
EVENT_BLOCKS = Counter(
    "smetric_event_blocks",
    "Engine blocks in events, by cache tier.",
    ["pool", "instance", "kind", "medium"],
    registry=REGISTRY,
)
EVENT_ERRORS = Counter(
    "smetric_event_errors", "Event messages that could not be used.", ["pool", "instance", "cause"], registry=REGISTRY
)
EVENT_GAPS = Counter(
    "smetric_event_gaps",
    "Breaks in an event stream, by how they ended: replayed or forgotten.",
    ["pool", "instance", "outcome"],
    registry=REGISTRY,
)
EVENT_LAG_SECONDS = Gauge(
    "smetric_event_lag_seconds",
    "Age of the newest event when it was applied; absent while there is no connection to the events.",
    ["pool", "instance"],
    registry=REGISTRY,
)
EVENT_SILENCE_SECONDS = Gauge(
    "smetric_event_silence_seconds",
    "Seconds since the newest event was applied; an idle engine is silent too.",
    ["pool", "instance"],
    registry=REGISTRY,
)
EVENTS_CONNECTED = Gauge(
    "smetric_events_connected",
    "1 while there is a connection to the events of an instance, in the process that follows them.",
    ["pool", "instance"],
    registry=REGISTRY,
)
EVENT_STATE = Gauge(
    "smetric_event_state",
    "1 for the state that the index of an instance is in: exact, recovering or unknown.",
    ["pool", "instance", "state"],
    registry=REGISTRY,
)
INDEX_BLOCKS = Gauge("smetric_index_blocks", "Prompt blocks in the index.", ["pool", "instance"], registry=REGISTRY)
SPECULATIVE_BLOCKS = Gauge(
    "smetric_speculative_blocks",
    "Prompt blocks counted as cached because they were just sent.",
    ["pool"],
    registry=REGISTRY,
)
PROMPT_MISMATCH = Gauge(
    "smetric_prompt_mismatch",
    "1 while nothing that is asked for matches anything that engines cache: wrong model_dir or chat template, "
    "or events of which no block can be held.",
    ["pool"],
    registry=REGISTRY,
)
INDEX_ERRORS = Counter(
    "smetric_index_errors",
    "Calls to Redis that failed, by what was asked and by cause.",
    ["call", "cause"],
    registry=REGISTRY,
)

_LABELLED = (value for value in list(globals().values()) if isinstance(value, MetricWrapperBase))
_OF_INSTANCES = tuple(metric for metric in _LABELLED if "instance" in metric._labelnames)  # noqa: SLF001 - it tells nobody


@lru_cache(maxsize=4096)
def series(metric: Labelled, *labels: str) -> Labelled:
    """The series of a metric with these labels, remembered: to look one up costs as much as to parse a small request.

    Not for metrics of instances: what is dropped by `forget_instance` would be counted on, and shown nowhere.
    """
    return metric.labels(*labels)


def forget_instance(pool: str, instance: str) -> None:
    """Drop the series of an instance that left: pods come and go, and a scrape must not grow with their number."""
    for metric in _OF_INSTANCES:
        metric.remove_by_labels({"pool": pool, "instance": instance})
