"""The instance's state under vLLM's metric names, read when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from loadgen.engine.clock import LiveRequest
from loadgen.engine.instance import Instance

TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)


class EngineMetrics(Collector):
    """One engine's metrics in a registry of their own, labelled as vLLM labels them."""

    def __init__(self, instance: Instance[LiveRequest], model: str) -> None:
        self.registry = CollectorRegistry()
        self._instance = instance
        self._labels = {"engine": "0", "model_name": model}
        names = tuple(self._labels)
        ttft = Histogram(
            "vllm:time_to_first_token_seconds",
            "Time to the first token.",
            names,
            buckets=TTFT_BUCKETS,
            registry=self.registry,
        )
        self.ttft = ttft.labels(**self._labels)
        self._finished = Counter(
            "vllm:request_success", "Finished requests.", (*names, "finished_reason"), registry=self.registry
        )
        self.registry.register(self)

    def finished(self, reason: str) -> None:
        """Count a request that was answered to the end."""
        self._finished.labels(**self._labels, finished_reason=reason).inc()

    def collect(self) -> Iterator[Metric]:
        """What a scrape sees of the instance."""
        instance = self._instance
        gauges = {
            "vllm:num_requests_running": ("Requests in execution.", len(instance.running)),
            "vllm:num_requests_waiting": ("Requests waiting to be scheduled.", len(instance.waiting)),
            "vllm:kv_cache_usage_perc": ("KV cache in use by requests, 1 is all of it.", instance.usage),
        }
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(name, text, labels=tuple(self._labels))
            gauge.add_metric(tuple(self._labels.values()), value)
            yield gauge
        counters = {
            "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", instance.queried),
            "vllm:prefix_cache_hits": ("Prompt tokens found in the prefix cache.", instance.hits),
            "vllm:num_preemptions": ("Preemptions; the simulated engine never preempts.", 0),
        }
        for name, (text, count) in counters.items():
            counter = CounterMetricFamily(name, text, labels=tuple(self._labels))
            counter.add_metric(tuple(self._labels.values()), count)
            yield counter
        settings = {
            "block_size": str(instance.block_size),
            "num_gpu_blocks": str(instance.cache.capacity),
            "kv_cache_size_tokens": str(instance.cache.capacity * instance.block_size),
            "enable_prefix_caching": "True",
            "prefix_caching_hash_algo": "sha256",
            "engine": "0",
        }
        info = GaugeMetricFamily("vllm:cache_config_info", "Settings of the cache.", labels=tuple(settings))
        info.add_metric(tuple(settings.values()), 1)
        yield info
