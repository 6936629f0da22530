"""vLLM's OpenAI-compatible server.

Its `/health` fails when the engine loop has died, which the list of models does not show.
"""

from __future__ import annotations

from headrace.wire.adapters.openai import OpenAIAdapter


def vllm() -> OpenAIAdapter:
    """OpenAI's dialect with vLLM's health check."""
    return OpenAIAdapter(health_path="/health")
