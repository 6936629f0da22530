"""trtllm-serve's own metrics: a JSON array with one object for each iteration since they were last read.

Only the last iteration tells the load of now. An empty array means that no iteration happened since, or that another
reader took them: nothing is known from it.
"""

from __future__ import annotations

import msgspec

from headrace.model import EngineReport


class _Cache(msgspec.Struct, rename="camel"):
    max_num_blocks: float | None = None
    used_num_blocks: float | None = None
    tokens_per_block: float | None = None


class _Batch(msgspec.Struct, rename="camel"):
    num_scheduled_requests: float | None = None


class _Iteration(msgspec.Struct, rename="camel"):
    num_active_requests: float | None = None
    num_queued_requests: float | None = None
    kv_cache_stats: _Cache | None = None
    inflight_batching_stats: _Batch | None = None


_ITERATIONS = msgspec.json.Decoder(list[_Iteration])


def read_iterations(body: bytes) -> EngineReport | None:
    """What the last iteration says; None when there is none, or the body is something else."""
    try:
        iterations = _ITERATIONS.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not iterations:
        return None
    last = iterations[-1]
    batch, cache = last.inflight_batching_stats or _Batch(), last.kv_cache_stats or _Cache()
    running = last.num_active_requests if batch.num_scheduled_requests is None else batch.num_scheduled_requests
    report = EngineReport(
        running=_count(running),
        waiting=_count(last.num_queued_requests),
        kv=_share(cache.used_num_blocks, cache.max_num_blocks),
        kv_tokens=_product(cache.max_num_blocks, cache.tokens_per_block),
    )
    return None if report.running is report.waiting is report.kv is None else report


def _count(value: float | None) -> float | None:
    return value if value is not None and value >= 0 else None


def _share(part: float | None, whole: float | None) -> float | None:
    if part is None or not whole or not 0 <= part <= whole:
        return None
    return part / whole


def _product(blocks: float | None, size: float | None) -> int | None:
    return None if not blocks or not size or blocks < 0 or size < 0 else int(blocks * size)
