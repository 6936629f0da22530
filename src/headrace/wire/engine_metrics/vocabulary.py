"""What each engine calls its load.

Names change: vLLM deprecates a metric in one release, hides it in the next and removes it in the one after, SGLang and
TensorRT-LLM rename without notice. So every signal has a list of names, the newest first, and the first that says
something counts.

Sources: vLLM 0.8 to 0.33 (`v1/metrics/loggers.py`; renamed: gpu_cache_usage_perc in 0.9, time_per_output_token_seconds
in 0.11), SGLang 0.4 to 0.5, text-generation-inference 3, Triton's TensorRT-LLM backend and trtllm-serve (also under
Dynamo, with a colon in the prefix), llama.cpp's server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headrace.model import Engine


class Signal(NamedTuple):
    """The series of one name, or those of them whose `label` has this `value`."""

    name: str
    label: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """One engine's names; of alternatives the first that says something counts."""

    running: tuple[Signal, ...]
    waiting: tuple[Signal, ...]
    kv: tuple[Signal, ...] = ()
    """Share in use, 0 to 1."""
    token_times: tuple[tuple[str, str], ...] = ()
    """Counters of (seconds, tokens): the growth of one divided by that of the other is the time per token."""
    preemptions: tuple[str, ...] = ()
    """Counters."""
    capacity: tuple[Signal, ...] = ()
    """Size of the KV cache in tokens: the product of all."""
    capacity_labels: tuple[str, str, str] | None = None
    """The same as the product of two labels: (name of the series, label, label)."""
    paths: tuple[str, ...] = ("/metrics",)
    """Where the page is, the likeliest first."""


_VLLM = Vocabulary(
    running=(Signal("vllm:num_requests_running"),),
    waiting=(Signal("vllm:num_requests_waiting"), Signal("vllm:num_requests_waiting_by_reason")),
    kv=(Signal("vllm:kv_cache_usage_perc"), Signal("vllm:gpu_cache_usage_perc")),
    token_times=(
        ("vllm:inter_token_latency_seconds_sum", "vllm:inter_token_latency_seconds_count"),
        ("vllm:time_per_output_token_seconds_sum", "vllm:time_per_output_token_seconds_count"),
        ("vllm:request_time_per_output_token_seconds_sum", "vllm:request_time_per_output_token_seconds_count"),
    ),
    preemptions=("vllm:num_preemptions_total", "vllm:num_preemptions"),
    capacity_labels=("vllm:cache_config_info", "num_gpu_blocks", "block_size"),
)

_SGLANG = Vocabulary(
    running=(Signal("sglang:num_running_reqs"),),
    waiting=(Signal("sglang:num_queue_reqs"),),
    kv=(Signal("sglang:token_usage"),),
    token_times=(
        ("sglang:inter_token_latency_seconds_sum", "sglang:inter_token_latency_seconds_count"),
        ("sglang:time_per_output_token_seconds_sum", "sglang:time_per_output_token_seconds_count"),
        ("sglang:request_time_per_output_token_seconds_sum", "sglang:request_time_per_output_token_seconds_count"),
    ),
    preemptions=("sglang:num_retracted_requests_total",),
    capacity=(Signal("sglang:max_total_num_tokens"),),
)

_TGI = Vocabulary(
    running=(Signal("tgi_batch_current_size"),),
    waiting=(Signal("tgi_queue_size"),),
    token_times=(("tgi_request_mean_time_per_token_duration_sum", "tgi_request_mean_time_per_token_duration_count"),),
    capacity=(Signal("tgi_batch_max_total_tokens"),),
)

_TRITON_REQUESTS, _TRITON_BLOCKS = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"

_TENSORRT = Vocabulary(
    running=(
        Signal("trtllm_num_requests_running"),
        Signal("trtllm:num_requests_running"),
        Signal(_TRITON_REQUESTS, "request_type", "scheduled"),
    ),
    waiting=(
        Signal("trtllm_num_requests_waiting"),
        Signal("trtllm:num_requests_waiting"),
        Signal(_TRITON_REQUESTS, "request_type", "waiting"),
    ),
    kv=(
        Signal("trtllm_kv_cache_utilization"),
        Signal("trtllm:kv_cache_utilization"),
        Signal(_TRITON_BLOCKS, "kv_cache_block_type", "fraction"),
    ),
    token_times=(
        ("trtllm_time_per_output_token_seconds_sum", "trtllm_time_per_output_token_seconds_count"),
        ("trtllm:time_per_output_token_seconds_sum", "trtllm:time_per_output_token_seconds_count"),
    ),
    capacity=(
        Signal(_TRITON_BLOCKS, "kv_cache_block_type", "max"),
        Signal(_TRITON_BLOCKS, "kv_cache_block_type", "tokens_per"),
    ),
    # trtllm-serve's own `/metrics` is a JSON array of iterations; what it read out is gone, so it comes second.
    paths=("/prometheus/metrics", "/metrics"),
)

_LLAMACPP = Vocabulary(
    running=(Signal("llamacpp:requests_processing"),),
    waiting=(Signal("llamacpp:requests_deferred"),),
    kv=(Signal("llamacpp:kv_cache_usage_ratio"),),
    token_times=(("llamacpp:tokens_predicted_seconds_total", "llamacpp:tokens_predicted_total"),),
)

VOCABULARIES = {
    Engine.VLLM: _VLLM,
    Engine.SGLANG: _SGLANG,
    Engine.TGI: _TGI,
    Engine.TENSORRT: _TENSORRT,
    Engine.LLAMACPP: _LLAMACPP,
}


def reports_metrics(engine: Engine) -> bool:
    """Whether engines of this kind may have metrics that can be read."""
    return engine in VOCABULARIES
