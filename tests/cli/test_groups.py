"""Options that come together: one parameter of a command, several options on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from headrace.cli import Refused
from headrace.cli.groups import From, grouped


@dataclass(frozen=True, kw_only=True)
class Place:
    """Made of two options."""

    host: Annotated[str, typer.Option(help="Where.")] = "here"
    port: int = 1


def length(*, text: str = "", times: int = 1) -> int:
    """Made of two others, and refuses what makes no sense."""
    if times < 1:
        raise Refused("times must be at least 1")
    return len(text) * times


@grouped
def command(
    name: Annotated[str, typer.Argument()],
    *,
    place: Annotated[Place, From(Place)],
    size: Annotated[int, From(length)],
    loud: bool = False,
) -> None:
    """What it does."""
    typer.echo(f"{name} {place.host} {place.port} {size} {loud}")


def run(*words: str) -> None:
    """The command, as its command line runs it."""
    app = typer.Typer()
    app.command()(command)
    app(args=list(words), standalone_mode=False)


def test_values_are_made_of_the_options_in_their_place(capsys: pytest.CaptureFixture[str]) -> None:
    """Given or left out, each option reaches the group that it belongs to; the others are as they are."""
    run("ann")
    run("ann", "--host", "there", "--port", "2", "--text", "abc", "--times", "2", "--loud")
    assert capsys.readouterr().out == "ann here 1 0 False\nann there 2 6 True\n"


def test_the_help_is_that_of_the_command_and_of_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of the group itself is seen."""
    run("--help")
    out = capsys.readouterr().out
    assert "What it does." in out
    assert "Where." in out
    assert all(option in out for option in ("--host", "--port", "--text", "--times", "--loud"))
    assert "--place" not in out
    assert "--size" not in out


def test_what_a_group_refuses_is_told_like_any_refusal() -> None:
    """A value that cannot be made ends the command with the sentence that says why."""
    with pytest.raises(Refused, match="at least 1"):
        run("ann", "--times", "0")
