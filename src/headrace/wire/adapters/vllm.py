"""vLLM's OpenAI-compatible server.

Its `/health` fails when the engine loop has died, which the list of models does not show. With `--scheduling-policy
priority` the lowest `priority` goes first; without it every `priority` but 0 is refused.
"""

from __future__ import annotations

from headrace.wire.adapters.openai import OpenAIAdapter


def vllm() -> OpenAIAdapter:
    """OpenAI's dialect with vLLM's health check and priorities."""
    return OpenAIAdapter(health_path="/health", urgent=-1)
