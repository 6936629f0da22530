"""What `headrace dev` does: children, registration, and restarts when files change."""

from __future__ import annotations

import ast
import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from headrace.cli import Refused
from headrace.cli.admin_client import AdminClient
from headrace.cli.dev.child import Child
from headrace.cli.discover import carry_out, plan, registered, told
from headrace.cli.engine_listing import find
from headrace.errors import ConfigError

PACKAGE = Path(__file__).parents[2]
"""The code that is watched."""
ENGINE_CODE = (PACKAGE / "testing", PACKAGE / "cli" / "mock_engine.py")
"""What the mock engines are made of: they go on running when other code changes."""
REGISTER_PAUSE = 0.2
"""Seconds between two tries to register the engines, while the gateway or one of them is still starting."""
DRAIN_SECONDS = "3"
"""What running requests get when the gateway is restarted or stopped."""

Changes = AsyncIterator[set[Path]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to run."""

    gateway: str | None
    """Its URL; None: engines only."""
    engines: Mapping[str, str]
    """The URL of each mock engine by its model."""
    starts_engines: bool = True
    """False: they run elsewhere and are only registered."""
    config: Path | None = None
    key: str | None = field(default=None, repr=False)
    """Of the gateway's admin API."""


async def run(plan: Plan, say: Callable[[str], None], changes: Changes) -> None:
    """Run everything until SIGINT or SIGTERM. `changes` yields the files that changed."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        state = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-dev-"))
        engines, gateway = _engines(plan, say), _gateway(plan, say, Path(state))
        tasks = [asyncio.create_task(child.run()) for child in (*engines, *gateway)]
        tasks.append(asyncio.create_task(_follow(changes, engines, gateway, say)))
        if gateway:
            tasks.append(asyncio.create_task(_register(plan, say)))
        ending = asyncio.create_task(stop.wait())
        running = tasks
        while not ending.done():
            done, _ = await asyncio.wait({ending, *running}, return_when=asyncio.FIRST_COMPLETED)
            running = [task for task in running if not task.done()]
            for task in done - {ending}:
                task.result()
        say("stopping")
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _engines(plan: Plan, say: Callable[[str], None]) -> list[Child]:
    if not plan.starts_engines:
        return []
    return [
        Child(model, ("mock-engine", "--model", model, "--port", url.rpartition(":")[2]), {}, say)
        for model, url in plan.engines.items()
    ]


def _gateway(plan: Plan, say: Callable[[str], None], state: Path) -> list[Child]:
    """Its state is kept for this run only, so that what is registered here stays nowhere else."""
    if plan.gateway is None:
        return []
    which = ("--engine", "echo") if plan.config is None else ("--config", str(plan.config))
    environment = {
        "HEADRACE_DEAD_LETTERS__PATH": str(state / "headrace.db"),
        "HEADRACE_SERVER__DRAIN_SECONDS": DRAIN_SECONDS,
        "HEADRACE_SERVER__LOG_FORMAT": "console",
    }
    return [Child("gateway", ("serve", *which, "--port", plan.gateway.rpartition(":")[2]), environment, say)]


async def _register(wanted: Plan, say: Callable[[str], None]) -> None:
    """Register each engine, as soon as it and the gateway answer. Done once: the gateway keeps it over restarts."""
    waiting = dict(wanted.engines)
    known: str | None = None
    while waiting:
        for model, url in list(waiting.items()):
            try:
                done = await asyncio.to_thread(_registered, wanted, model, url)
            except Refused as refusal:
                known = _once(str(refusal), known, say)
                continue
            del waiting[model]
            say(f"{model}: {done}")
        await asyncio.sleep(REGISTER_PAUSE)


def _registered(wanted: Plan, model: str, url: str) -> str:
    """Register one engine; what was done. Raises Refused while that cannot be done."""
    assert wanted.gateway is not None
    client = AdminClient(wanted.gateway, wanted.key)
    found = find(url, None, None)
    step, _ = carry_out(client, plan(found, url, registered(client)), found, url, {"id": model, "max_concurrent": 4})
    return told(step, url)


def _once(sentence: str, known: str | None, say: Callable[[str], None]) -> str:
    """Say what is in the way, unless it was said before or only means that something is starting."""
    if sentence != known and "nothing answers" not in sentence:
        say(f"cannot register yet: {sentence}")
    return sentence


async def _follow(
    changes: Changes, engines: Sequence[Child], gateway: Sequence[Child], say: Callable[[str], None]
) -> None:
    """Restart what is made of the files that changed, if they can be read."""
    async for paths in changes:
        wrong = next(filter(None, map(broken, sorted(paths))), None)
        names = ", ".join(sorted(path.name for path in paths))
        if wrong is not None:
            say(f"{names} changed, but what runs is kept: {wrong}")
            continue
        children = [*(engines if concerns_engines(paths) else ()), *gateway]
        if children:
            say(f"{names} changed: restarting {', '.join(child.name for child in children)}")
            await asyncio.gather(*(child.restart() for child in children))


def concerns_engines(paths: Iterable[Path]) -> bool:
    """Whether one of the files is part of the mock engines."""
    return any(path.is_relative_to(part) for path in paths for part in ENGINE_CODE)


def broken(path: Path) -> str | None:
    """Why a changed file cannot be used yet, in a sentence; None if it can."""
    from headrace.config import load

    if not path.exists():
        return None if path.suffix == ".py" else f"{path.name} is gone"
    try:
        if path.suffix == ".py":
            ast.parse(path.read_text(encoding="utf-8"), path.name)
        elif path.suffix in (".yaml", ".yml"):
            load(path, {})
    except SyntaxError as error:
        return f"{path.name}, line {error.lineno}: {error.msg}"
    except (ConfigError, OSError, ValueError) as error:
        return str(error)
    return None
