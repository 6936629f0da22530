"""`headrace demo`: what headrace is for, in a second, without a key and without a network."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import Refused


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
            from headrace.cli.outage.command import outage

            outage(provider, model, key_env, trace, stream=stream, quiet=as_json)


def _refuse(scene: Scene, options: Mapping[Scene, Mapping[str, object]]) -> None:
    """Raises Refused for an option that is given and belongs to other scenes only."""
    mine = options.get(scene, {})
    for other in options.values():
        for name, value in other.items():
            if value is not None and name not in mine:
                owners = " or ".join(owner.value for owner, its in options.items() if name in its)
                raise Refused(f"{name} belongs to --scene {owners}")
