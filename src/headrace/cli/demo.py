"""`headrace demo`: what headrace is for, in a second, without a key and without a network."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from headrace.cli import Refused

if TYPE_CHECKING:
    from headrace.cli.demo_scenario import Story, Turn
    from headrace.runtime.worker_set import AnyWorker


class Provider(NamedTuple):
    """Where a real model is, and which variable holds the key for it."""

    address: str
    key_env: str | None


PROVIDERS = {
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": Provider("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
}


class Scene(StrEnum):
    """What can be played."""

    OUTAGE = "outage"
    POWER_USER = "power-user"
    FAILOVER = "failover"
    LIST = "list"


SCENES = {
    Scene.OUTAGE: "twenty requests: twelve share three model calls, eight meet a provider that is down (a second)",
    Scene.POWER_USER: "one user who asks for much, two who ask for little, under four strategies (45 seconds)",
    Scene.FAILOVER: "seven users stream from two engines, one of which is killed and comes back (13 seconds)",
}


def demo(
    *,
    scene: Annotated[Scene, typer.Option(help="What to play; `list` says what there is.")] = Scene.OUTAGE,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was measured as one JSON object.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="power-user, failover: draw a picture there (png, svg, pdf).")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="outage, failover: write all events to this file, as JSON.")
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(help="outage: ask a real model at openai, anthropic, or the URL of a server like theirs."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name at --provider.")] = None,
    key_env: Annotated[str | None, typer.Option(help="The variable that holds the key for --provider URL.")] = None,
    stream: Annotated[bool, typer.Option(help="Let the real model's answers come token by token.")] = True,
) -> None:
    """Twelve requests that need three model calls, then an outage; or, with --scene, something else."""
    own: dict[Scene, Mapping[str, object]] = {
        Scene.OUTAGE: {"--provider": provider, "--model": model, "--key-env": key_env, "--trace": trace},
        Scene.POWER_USER: {"--plot": plot},
        Scene.FAILOVER: {"--plot": plot, "--trace": trace},
    }
    _refuse(scene, own)
    match scene:
        case Scene.LIST:
            print("\n".join(f"{name.value:<12}{what}" for name, what in SCENES.items()))
            return
        case Scene.POWER_USER:
            from headrace.cli.power_user.command import power_user

            raise typer.Exit(power_user(plot, quiet=as_json))
        case Scene.FAILOVER:
            from headrace.cli.failover.command import failover

            raise typer.Exit(failover(plot, trace, quiet=as_json))
        case Scene.OUTAGE:
            _outage(provider, model, key_env, trace, stream=stream, quiet=as_json)


def _outage(
    provider: str | None, model: str | None, key_env: str | None, trace: Path | None, *, stream: bool, quiet: bool
) -> None:
    from headrace.cli.written import refuse_unwritable, writing

    worker, name = choose(provider, model, key_env, os.environ, stream=stream)
    refuse_unwritable(trace)
    story = _play(worker, name, quiet=quiet)
    if trace is not None:
        with writing(trace):
            trace.write_text(story.trace.text(), encoding="utf-8")
    if quiet:
        timings = {part: round(seconds, 4) for part, seconds in story.seconds.items()}
        print(json.dumps({**story.totals, "timings": timings}))


def _refuse(scene: Scene, options: Mapping[Scene, Mapping[str, object]]) -> None:
    """Raises Refused for an option that is given and belongs to other scenes only."""
    mine = options.get(scene, {})
    for other in options.values():
        for name, value in other.items():
            if value is not None and name not in mine:
                owners = " or ".join(owner.value for owner, its in options.items() if name in its)
                raise Refused(f"{name} belongs to --scene {owners}")


def choose(
    provider: str | None, model: str | None, key_env: str | None, env: Mapping[str, str], *, stream: bool
) -> tuple[AnyWorker, str]:
    """The model that is asked, and what it is called on the screen.

    Raises:
        Refused: a model without its provider or the other way round, no such provider, or no key for it.
    """
    from headrace.cli.demo_scenario import MODEL_SECONDS, MockModel

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
    from rich.console import Console

    from headrace.cli.demo_scenario import play
    from headrace.cli.demo_screen import WIDEST, ending, first_act, opening, second_act

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
