"""Hugging Face's text-generation-inference, by its OpenAI-compatible paths."""

from __future__ import annotations

from headrace.wire.adapters.openai import OpenAIAdapter


def tgi() -> OpenAIAdapter:
    """OpenAI's dialect with text-generation-inference's health check."""
    return OpenAIAdapter(health_path="/health")
