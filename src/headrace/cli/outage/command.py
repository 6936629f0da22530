"""`headrace demo --scene outage`: ask the mock model or a real one, play, show, write."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from headrace.cli import Refused
from headrace.cli.outage.scene import MODEL_SECONDS, MockModel, Story, Turn, play
from headrace.cli.outage.screen import WIDEST, ending, first_act, opening, second_act
from headrace.cli.written import refuse_unwritable, writing
from headrace.runtime.worker_set import AnyWorker


class Provider(NamedTuple):
    """Where a real model is, and which variable holds the key for it."""

    address: str
    key_env: str | None


PROVIDERS = {
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": Provider("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
}


def outage(
    provider: str | None, model: str | None, key_env: str | None, trace: Path | None, *, stream: bool, quiet: bool
) -> None:
    """Play the scene; `quiet` prints one JSON object instead of a screen.

    Raises:
        Refused: no such model, one that did not answer, or the trace cannot be written.
    """
    worker, name = choose(provider, model, key_env, os.environ, stream=stream)
    refuse_unwritable(trace)
    story = _play(worker, name, quiet=quiet)
    if trace is not None:
        with writing(trace):
            trace.write_text(story.trace.text(), encoding="utf-8")
    if quiet:
        timings = {part: round(seconds, 4) for part, seconds in story.seconds.items()}
        print(json.dumps({**story.totals, "timings": timings}))
    unanswered = [turn for turn in story.answered if turn.answer is None]
    if unanswered:
        details = {letter.request_id: letter.detail for letter in story.letters}
        reason = details.get(unanswered[0].id, str(unanswered[0].error))
        raise Refused(f"{name} left {len(unanswered)} of {len(story.answered)} questions unanswered: {reason}")


def choose(
    provider: str | None, model: str | None, key_env: str | None, env: Mapping[str, str], *, stream: bool
) -> tuple[AnyWorker, str]:
    """The model that is asked, and what it is called on the screen.

    Raises:
        Refused: a model without its provider or the other way round, no such provider, or no key for it.
    """
    if provider is None:
        if model is not None or key_env is not None:
            raise Refused("--model and --key-env belong to --provider: openai, anthropic or a URL")
        return MockModel(), f"mock, {MODEL_SECONDS * 1000:.0f} ms"
    if model is None:
        raise Refused("say which model of --provider to ask, with --model")
    place = PROVIDERS.get(provider) or Provider(provider, None)
    if "://" not in place.address:
        raise Refused(f"--provider: '{provider}' is neither openai nor anthropic nor a URL")
    variable = key_env or place.key_env
    key = env.get(variable, "").strip() if variable is not None else ""
    if variable is not None and not key:
        raise Refused(f"{variable} is not set; it holds the key for {provider}")

    from headrace.runtime.openai_worker import OpenAIWorker

    return OpenAIWorker(place.address, model=model, key=key or None, stream=stream), f"{model} at {provider}"


def _play(worker: AnyWorker, name: str, *, quiet: bool) -> Story:
    if quiet:
        return asyncio.run(play(worker))
    terminal = Console(highlight=False)
    console = Console(highlight=False, width=min(WIDEST, terminal.width) if terminal.is_terminal else WIDEST)

    def show(turns: tuple[Turn, ...]) -> None:
        console.print(first_act(turns), "", sep="\n")

    console.print(opening(name))
    story = asyncio.run(play(worker, on_answers=show))
    console.print(second_act(story), "", ending(story), sep="\n")
    return story
