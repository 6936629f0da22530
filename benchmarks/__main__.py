"""`make bench`: every measurement as a table.

`--json FILE` writes the numbers, `--quick` takes a tenth of the time, names select, `--write` puts the tables into
`docs/performance.md`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import page
from benchmarks.report import Report

NAMES = ("peers", "overhead", "growth", "decisions", "micro")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="which; all of them without a name")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    console, numbers, reports = Console(), {}, list[Report]()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    for name in asked.names or NAMES:
        with Progress(*columns, console=console, transient=True) as progress:
            progress.add_task(f"measuring: {name}")
            found: list[Report] = importlib.import_module(f"benchmarks.{name}").run(asked.quick)
        for report in found:
            show(console, report)
        numbers[name] = {key: value for report in found for key, value in report.numbers.items()}
        reports += found
    console.print(
        f"[dim]Python {platform.python_version()}, {platform.machine()}; timings on a shared machine are noisy[/dim]"
    )
    if asked.write:
        page.write([report for report in reports if report.rows])
    if asked.json:
        asked.json.write_text(json.dumps(numbers, indent=2))


def show(console: Console, report: Report) -> None:
    table = Table(title=report.title, title_justify="left")
    for number, column in enumerate(report.columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in report.rows:
        table.add_row(*row)
    console.print(table)
    for note in report.notes:
        console.print(note)


if __name__ == "__main__":
    main()
