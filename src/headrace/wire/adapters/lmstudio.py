"""LM Studio's server. It speaks OpenAI's API, has no health check of its own and reports no metrics."""

from __future__ import annotations

from headrace.wire.adapters.openai import OpenAIAdapter


def lmstudio() -> OpenAIAdapter:
    """OpenAI's dialect; its list of models shows that it is there."""
    return OpenAIAdapter()
