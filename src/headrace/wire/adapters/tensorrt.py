"""TensorRT-LLM behind an OpenAI-compatible server: trtllm-serve, or Triton's OpenAI frontend."""

from __future__ import annotations

from headrace.wire.adapters.openai import OpenAIAdapter


def tensorrt() -> OpenAIAdapter:
    """OpenAI's dialect with trtllm-serve's health check; a 404 by another server still says that it is there."""
    return OpenAIAdapter(health_path="/health")
