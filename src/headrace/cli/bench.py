"""`headrace bench URL`: several users at once against any OpenAI-shaped endpoint, measured from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from headrace.cli import Refused

if TYPE_CHECKING:
    from headrace.bench.endpoint import Endpoint
    from headrace.bench.patterns import User
    from headrace.bench.report import Report
    from headrace.bench.run import Plan, Run

LONGEST_RUN = 86_400.0
STDOUT = Path("-")
REFRESHES = 4.0
"""Looks at the table per second while it runs."""


class Preset(StrEnum):
    """Users that are ready-made; see `bench.patterns.PRESETS`."""

    FLOOD = "flood"
    STEADY = "steady"
    MIXED = "mixed"


_USERS = (
    "NAME:key=value,... (repeatable). Keys: rate, burst, concurrency, think, at, until, requests, prompt, output, "
    "shared, session, class, key_env, copies. Lengths: 400, 100-900, lognormal:400:0.8."
)
_Seconds = typer.Option(min=0.1, max=LONGEST_RUN, help="Seconds to measure.")
_Grace = typer.Option(min=0.0, max=LONGEST_RUN, help="Seconds in which what is under way may then still end.")
_IgnoreEos = typer.Option("--ignore-eos", help="Answers of full length, from engines that know ignore_eos.")
_KeyEnv = typer.Option(help="The environment variable that holds the API key.", show_default=False)
_Json = typer.Option("--json", help="Write the result there as JSON; - prints it instead of the tables.")


def bench(
    url: Annotated[str, typer.Argument(help="The endpoint, with or without /v1.")],
    *,
    users: Annotated[list[str] | None, typer.Option("--users", "-u", help=_USERS, show_default=False)] = None,
    preset: Annotated[Preset | None, typer.Option(help="Ready-made users; flood where no --users are given.")] = None,
    duration: Annotated[float, _Seconds] = 20.0,
    grace: Annotated[float, _Grace] = 30.0,
    model: Annotated[str | None, typer.Option(help="The model to ask; else the first that is listed.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Most seconds for one request.")] = 300.0,
    ignore_eos: Annotated[bool, _IgnoreEos] = False,
    api_key_env: Annotated[str | None, _KeyEnv] = None,
    seed: Annotated[int | None, typer.Option(help="Start of the random numbers; a new one where absent.")] = None,
    json: Annotated[Path | None, _Json] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the result there (png, svg, pdf).")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before loading another machine.")] = False,
) -> None:
    """Load an endpoint as several users would, and show what each of them gets: waits, speed, share, fairness."""
    from headrace.bench.endpoint import Endpoint, Unusable
    from headrace.bench.run import Plan
    from headrace.cli.written import refuse_undrawable, refuse_unwritable

    refuse_undrawable(plot)
    refuse_unwritable(None if json == STDOUT else json)
    try:
        chosen, start = _users(users or [], preset), SystemRandom().randrange(2**32) if seed is None else seed
        keys = {user.name: _key(user.key_env) or "" for user in chosen if user.key_env is not None}
        plan = Plan(users=chosen, model=model or "", duration=duration, grace=grace, seed=start, keys=keys)
        endpoint = Endpoint(url, _key(api_key_env), timeout)
        _consent(endpoint.url, yes=yes)
        result = asyncio.run(_measure(endpoint, replace(plan, ignore_eos=ignore_eos)))
    except (Unusable, ValueError) as error:
        raise Refused(f"{error}") from None
    _hand_over(result, json, plot)
    raise typer.Exit(130 if result.interrupted else int(not result.served))


async def _measure(endpoint: Endpoint, plan: Plan) -> Report:
    """Ask once to see that it works, then run. Ctrl-C ends the run and still gives its result."""
    from headrace.bench.report import report
    from headrace.bench.run import Run

    async with endpoint:
        plan = replace(plan, model=plan.model or (await endpoint.models())[0])
        run = Run(plan, endpoint)
        answer, alone = await run.alone()
        if not answer.served:
            _explain(endpoint.url, plan.model, answer.result)
        started = time.time()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, run.interrupt)
        try:
            window = await _shown(run)
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    return report(
        plan, run.tallies, window=window, url=endpoint.url, started=started, interrupted=run.interrupted, alone=alone
    )


async def _shown(run: Run) -> float:
    """Run, with a table that follows on a terminal."""
    from rich.console import Console
    from rich.live import Live

    from headrace.cli.bench_tables import live_table

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        print(f"Asking {run.plan.model} for {run.plan.duration:g} s.", file=sys.stderr)
        return await run.go()

    async def follow(live: Live) -> None:
        while True:
            await asyncio.sleep(1 / REFRESHES)
            live.update(live_table(run), refresh=True)

    with Live(console=console, auto_refresh=False, transient=True) as live:
        following = asyncio.create_task(follow(live))
        try:
            return await run.go()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def _hand_over(result: Report, json: Path | None, plot: Path | None) -> None:
    """Tables, JSON, picture."""
    from rich.console import Console

    from headrace.bench.plot import draw
    from headrace.cli.bench_tables import patterns, service_table, verdict, waits_tables
    from headrace.cli.tables import PAPER_WIDTH, show
    from headrace.cli.written import writing

    if json == STDOUT:
        sys.stdout.write(result.to_json().decode())
    else:
        print(f"{result.model} at {result.url}, {result.window:.1f} s, seed {result.seed}")
        print("\n".join(patterns(result.users)), end="\n\n")
        terminal = Console()
        for table in waits_tables(result, terminal.width if terminal.is_terminal else PAPER_WIDTH):
            show(table)
            print()
        show(service_table(result))
        print()
        print("\n".join(verdict(result)))
    if json is not None and json != STDOUT:
        with writing(json):
            json.write_bytes(result.to_json())
    if plot is not None:
        with writing(plot):
            draw(result, plot)


def _users(texts: Sequence[str], preset: Preset | None) -> tuple[User, ...]:
    """Those that are named; those of the preset before them, or alone."""
    from headrace.bench.patterns import PRESETS, read_users

    named = read_users(texts)
    ready = PRESETS[preset or Preset.FLOOD] if preset is not None or not named else ()
    twice = {user.name for user in ready} & {user.name for user in named}
    if twice:
        raise Refused(f"the preset has a user {min(twice)} too; give yours another name")
    return (*ready, *named)


def _key(variable: str | None, env: Mapping[str, str] = os.environ) -> str | None:
    if variable is None:
        return None
    key = env.get(variable, "")
    if not key:
        raise Refused(f"the environment variable {variable} is not set")
    return key


def _consent(url: str, *, yes: bool) -> None:
    """Load on a machine that is not this one has to be meant."""
    from headrace.config import is_loopback

    host = urlsplit(url).hostname or ""
    if yes or is_loopback(host):
        return
    if not sys.stdin.isatty():
        raise Refused(f"{host} is not this machine, and a run may load it heavily; say --yes if that is meant")
    typer.confirm(f"{host} is not this machine, and this loads it heavily. Go on?", abort=True, err=True)


def _explain(url: str, model: str, result: str) -> None:
    """Raises Refused for what kept the first request from being answered."""
    what = {
        "connect": f"nothing answers at {url}",
        "timeout": f"{url} did not answer in time",
        "cut": f"{url} broke its answer off",
        "empty": f"{url} answered {model} with nothing",
    }.get(result, f"{url} refused a first request to {model}: {result}")
    key = "; name a key with --api-key-env" if result.startswith(("401", "403")) else ""
    raise Refused(what + key)
