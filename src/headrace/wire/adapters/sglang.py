"""SGLang's OpenAI-compatible server. Its `/health` is 503 while the scheduler does not answer."""

from __future__ import annotations

from headrace.wire.adapters.openai import OpenAIAdapter


def sglang() -> OpenAIAdapter:
    """OpenAI's dialect with SGLang's health check."""
    return OpenAIAdapter(health_path="/health")
