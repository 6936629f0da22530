"""A model for pipelines that counts its calls."""

from __future__ import annotations

import asyncio

from headrace.runtime.pipeline import Pipeline
from headrace.runtime.prompts import PromptRequest


class Counting:
    """A model that takes its time, counts its calls, and can fail or hold."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.calls = 0
        self.cancelled = 0
        self.error: Exception | None = None

    async def infer(self, prompt: PromptRequest, /) -> str:
        self.calls += 1
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return f"{prompt.input}!"


def ask(text: str = "q", **more: object) -> PromptRequest:
    """A prompt; tests name what matters to them."""
    return PromptRequest(text, **more)  # type: ignore[arg-type]


def idle(pipe: Pipeline) -> bool:
    """Nothing is held for anybody any more."""
    snapshot = pipe.snapshot()
    counts = (snapshot.queued, snapshot.running, snapshot.waiting_retry, snapshot.looking, snapshot.following)
    return not any(counts) and not any(stage.depth for stage in pipe.stages) and not snapshot.instances[0].in_flight
