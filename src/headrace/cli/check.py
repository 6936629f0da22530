"""`headrace check`: is this configuration usable, and what does it mean?"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def check(
    file: Annotated[Path | None, typer.Argument(help="YAML file; else HEADRACE_CONFIG, else the environment.")] = None,
    *,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of the file instead.")] = False,
    example: Annotated[bool, typer.Option("--example", help="Print a file with every key instead.")] = False,
) -> None:
    """Validate a configuration and print what it means."""
    from headrace.cli.options import choose
    from headrace.config import example_yaml, schema_json

    if schema or example:
        sys.stdout.write(schema_json() if schema else example_yaml())
        return
    from headrace.cli.tables import instances_table, settings_table, show

    chosen = choose(file, os.environ, {})
    show(instances_table(chosen.config), settings_table(chosen.config))
    for warning in chosen.config.warnings():
        print(f"warning: {warning}")
    print(f"{chosen.path or 'no file'}: usable")
