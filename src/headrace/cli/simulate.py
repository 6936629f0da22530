"""`headrace simulate`: what would users feel? The real scheduler on virtual time, before modelled engines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import Refused
from headrace.cli.written import refuse_unwritable, writing

if TYPE_CHECKING:
    from headrace.sim.scenario import Scenario
    from headrace.sim.suite import Result

OnTime = Callable[[str, float, float], None]


def simulate(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="S1 to S10 (or a part, as S5-overload), or YAML files.", metavar="S1|FILE..."),
    ] = None,
    *,
    policy: Annotated[str, typer.Option(help="Policies to compare, with commas between; `list` names them.")] = "fair",
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs with different chance; medians are shown.")] = 1,
    duration: Annotated[float | None, typer.Option(min=1.0, help="Virtual seconds, instead of the scenario's.")] = None,
    journal: Annotated[Path | None, typer.Option(help="Replay recorded traffic on the machines of FILE.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each scenario and policy.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the first seed as PNG, one file for each scenario.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one page with tables and plots.")] = None,
) -> None:
    """Run the real scheduler on virtual time before modelled engines, and compare policies.

    S1 flood against single requests, S2 four users below and four above their share, S3 interactive against batch,
    S4 long prompts against long answers, S5 conversations with shared prefixes, S6 fast and slow machines, S7 a machine
    that refuses, S8 a real trace, S9 how many in flight, S10 several gateways.
    """
    policies = _policies(policy)
    refuse_unwritable(plot, html)
    if plot is not None or html is not None:
        from headrace.sim.plots import require_matplotlib

        require_matplotlib()
    scenarios = _scenarios(what or [], journal)
    if duration is not None:
        scenarios = [scenario.shorter(duration) for scenario in scenarios]
    with _progress(quiet=as_json) as on_time:
        found = [_run(scenario, policies, seeds, on_time, as_json=as_json) for scenario in scenarios]
    if plot is not None:
        _plot(found, plot)
    if html is not None:
        from headrace.sim.page import page

        with writing(html):
            html.write_text(page(found), encoding="utf-8")


def _run(
    scenario: Scenario, policies: Sequence[str], seeds: int, on_time: OnTime | None, *, as_json: bool
) -> list[Result]:
    from headrace.sim.suite import Suite

    suite = Suite(on_time)
    results = [suite.result(scenario, policy, range(1, seeds + 1)) for policy in policies]
    if as_json:
        for result in results:
            print(json.dumps(result.document(), separators=(",", ":")), flush=True)
    else:
        from headrace.cli.tables import show
        from headrace.sim.report import tables

        show(tables(results))
    return results


def _plot(found: Sequence[Sequence[Result]], plot: Path) -> None:
    from headrace.sim.plots import draw

    for results in found:
        path = plot if len(found) == 1 else plot.with_stem(f"{plot.stem}-{results[0].scenario.name}")
        with writing(path):
            path.write_bytes(draw(results))


def _policies(names: str) -> list[str]:
    from headrace.sim.suite import POLICIES

    if names == "list":
        print("\n".join(POLICIES))
        raise typer.Exit
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in POLICIES]
    if unknown or not wanted:
        raise Refused(f"--policy: '{', '.join(unknown)}' is no policy; there are {', '.join(POLICIES)}.")
    return list(dict.fromkeys(wanted))


def _scenarios(what: Sequence[str], journal: Path | None) -> list[Scenario]:
    from headrace.sim.own import from_journal

    found = [scenario for word in what for scenario in _named(word)]
    if journal is not None:
        return [from_journal(journal, scenario) for scenario in found] or [from_journal(journal, None)]
    for scenario in found:
        if not scenario.clients:
            raise Refused(f"{scenario.name}: there are no clients in it; add some, or replay a --journal.")
    if not found:
        raise Refused("Say what to simulate: S1 to S10, a YAML file, or --journal FILE.")
    return found


def _named(word: str) -> Sequence[Scenario]:
    from headrace.sim.own import load
    from headrace.sim.scenarios import SCENARIOS

    if word.upper() in SCENARIOS:
        return SCENARIOS[word.upper()]
    parts = {part.name.lower(): part for scenario in SCENARIOS.values() for part in scenario}
    if word.lower() in parts:
        return [parts[word.lower()]]
    if word.endswith((".yaml", ".yml")):
        return [load(Path(word))]
    raise Refused(f"'{word}' is no scenario; there are {', '.join(SCENARIOS)}, and YAML files of your own.")


@contextmanager
def _progress(*, quiet: bool) -> Iterator[OnTime | None]:
    """A bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def on_time(what: str, now: float, until: float) -> None:
            progress.update(task, description=what, completed=now, total=until)

        yield on_time
