"""SGLang's OpenAI-compatible server. Its `/health` is 503 while the scheduler does not answer.

With `--enable-priority-scheduling` the highest `priority` goes first, unlike vLLM's.
"""

from __future__ import annotations

from headrace.wire.adapters.openai import OpenAIAdapter


def sglang() -> OpenAIAdapter:
    """OpenAI's dialect with SGLang's health check and priorities."""
    return OpenAIAdapter(health_path="/health", urgent=1)
