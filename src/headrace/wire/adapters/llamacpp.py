"""llama.cpp's server. Its `/health` is 503 while a model loads, and needs no key.

A chat whose last message is the assistant's is gone on from without being asked to.
"""

from __future__ import annotations

from headrace.wire.adapters.openai import OpenAIAdapter


def llamacpp() -> OpenAIAdapter:
    """OpenAI's dialect with llama.cpp's health check."""
    return OpenAIAdapter(health_path="/health", goes_on={})
