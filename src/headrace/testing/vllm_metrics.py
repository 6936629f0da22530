"""`/metrics` of the mock engine: the names, types and labels of vLLM (0.11 and later), in Prometheus text."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LABELS = ("model_name", "engine")
_FIRST_TOKEN_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
_NEXT_TOKEN_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)


class VllmMetrics:
    """One engine's metrics in a registry of their own; durations are seconds of the engine's clock."""

    def __init__(self, model: str) -> None:
        self._registry = registry = CollectorRegistry()

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"vllm:{name}", text, _LABELS, registry=registry).labels(model, "0")

        def counter(name: str, text: str) -> Counter:
            return Counter(f"vllm:{name}", text, _LABELS, registry=registry).labels(model, "0")

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(f"vllm:{name}", text, _LABELS, registry=registry, buckets=buckets)
            return family.labels(model, "0")

        self._running = gauge("num_requests_running", "Requests in the batch.")
        self._waiting = gauge("num_requests_waiting", "Requests that wait for a place in the batch.")
        self._kv_use = gauge("kv_cache_usage_perc", "Share of the KV cache in use; 1 is all of it.")
        self._prompt = counter("prompt_tokens", "Prompt tokens taken in.")
        self._generated = counter("generation_tokens", "Tokens generated.")
        self._success = Counter(
            "vllm:request_success", "Requests answered.", (*_LABELS, "finished_reason"), registry=registry
        )
        self._first = histogram("time_to_first_token_seconds", "From arrival to the first token.", _FIRST_TOKEN_BUCKETS)
        self._next = histogram("inter_token_latency_seconds", "Between two tokens of a request.", _NEXT_TOKEN_BUCKETS)
        self._model = model

    def prompt_tokens(self, tokens: int) -> None:
        """A request with so many prompt tokens was let in."""
        self._prompt.inc(tokens)

    def first_token(self, seconds: float) -> None:
        """A request's first token came after `seconds`."""
        self._generated.inc()
        self._first.observe(seconds)

    def next_token(self, seconds: float) -> None:
        """A further token came `seconds` after the one before."""
        self._generated.inc()
        self._next.observe(seconds)

    def answered(self, finish_reason: str) -> None:
        """A request was answered to its end."""
        self._success.labels(self._model, "0", finish_reason).inc()

    def text(self, running: int, waiting: int, kv_use: float) -> bytes:
        """The exposition with these gauges."""
        self._running.set(running)
        self._waiting.set(waiting)
        self._kv_use.set(kv_use)
        return generate_latest(self._registry)
