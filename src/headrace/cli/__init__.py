"""The command line: one module per command, imported only when it is called.

The only place that reads the process's environment and arguments; everything below is handed them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

COMMANDS = {
    "serve": "headrace.cli.serve:serve",
    "chat": "headrace.cli.chat:chat",
    "demo": "headrace.cli.demo:demo",
    "check": "headrace.cli.check:check",
    "bench": "headrace.cli.bench:bench",
    "dlq": "headrace.cli.dlq:dlq",
    "instances": "headrace.cli.instances:instances",
    "discover": "headrace.cli.discover:discover",
    "dev": "headrace.cli.dev.command:dev",
    "mock-engine": "headrace.cli.mock_engine:mock_engine",
    "simulate": "headrace.cli.simulate:simulate",
    "version": "headrace.cli.version:version",
}
"""Command name -> where its function (or its group of commands) is."""

USAGE_ERROR = 2
"""Exit code for what the person at the keyboard can mend: arguments, configuration, a file, an address."""


class Refused(Exception):
    """A command cannot do what was asked; the message is one sentence for the person who asked."""


def build(names: Sequence[str]) -> typer.Typer:
    """The application with the named commands."""
    app = typer.Typer(
        name="headrace",
        help="A self-hosted traffic gateway for large language models.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in names:
        module, _, attribute = COMMANDS[name].partition(":")
        command: object = getattr(import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        elif callable(command):
            app.command(name)(command)
    return app


def _say_version(asked: bool) -> None:
    if asked:
        from headrace.cli.version import version

        version()
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """A self-hosted traffic gateway for large language models."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 when it did what was asked, 2 for a mistake in the asking, 130 for Ctrl-C."""
    from headrace.errors import ConfigError

    given = list(sys.argv[1:] if arguments is None else arguments)
    wanted = next((word for word in given if not word.startswith("-")), "")
    try:
        build([wanted] if wanted in COMMANDS else list(COMMANDS))(args=given, prog_name="headrace")
    except (ConfigError, Refused) as error:
        print(f"headrace: {error}", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output (as `head`) has gone; there is nobody left to tell.
        sys.stderr.close()
        sys.exit(0)
