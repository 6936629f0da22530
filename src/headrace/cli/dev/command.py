"""`headrace dev`: start, say what runs, stop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import Refused
from headrace.cli.admin_client import AdminKey
from headrace.cli.options import ConfigFile, config_path

if TYPE_CHECKING:
    from headrace.cli.dev.run import Plan

MODELS = ("mock-a", "mock-b")


def dev(
    *,
    config: ConfigFile = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The gateway's; 0 takes a free one.")] = 8080,
    engine_port: Annotated[
        int, typer.Option(min=0, max=65534, help="The first engine's, the second has the next; 0 takes free ones.")
    ] = 8001,
    gateway_only: Annotated[bool, typer.Option("--gateway-only", help="The engines run in another terminal.")] = False,
    engines_only: Annotated[bool, typer.Option("--engines-only", help="The gateway runs in another terminal.")] = False,
    key: AdminKey = None,
) -> None:
    """Run a gateway with two mock engines; changes of code or configuration restart it. Ctrl-C stops all."""
    from headrace.cli.dev.run import run
    from headrace.config import load

    if gateway_only and engines_only:
        raise Refused("--gateway-only and --engines-only exclude each other; without them both are run")
    file = config_path(config, os.environ)
    if file is not None:
        load(file, os.environ)
    plan = _plan(port, engine_port, file, key, gateway=not engines_only, engines=not gateway_only)
    print("\n".join(announcement(plan)), flush=True)
    asyncio.run(run(plan, lambda line: print(line, flush=True), _changes(file.resolve() if file is not None else None)))


def announcement(plan: Plan) -> Iterator[str]:
    """What is about to run, and a line to try."""
    for model, url in plan.engines.items():
        yield f"{model}: a mock engine at {url}" + ("" if plan.starts_engines else " (registered when it runs)")
    if plan.gateway is not None:
        served = f"with {plan.config}" if plan.config is not None else "with the two engines and the built-in echo"
        yield f"gateway: {plan.gateway} {served}. Try:"
        body = f'{{"model": "{MODELS[0]}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
        yield f"  curl {plan.gateway}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"
    yield "Changes of code and configuration restart what they concern; Ctrl-C stops everything."


def _plan(port: int, engine_port: int, file: Path | None, key: str | None, *, gateway: bool, engines: bool) -> Plan:
    from headrace.cli.dev.run import Plan

    if not engines and not engine_port:
        raise Refused("say with --engine-port where the engines run that are to be registered")
    wanted = [engine_port + number if engine_port else 0 for number in range(len(MODELS))]
    ports = [_free(number) for number in wanted] if engines else wanted
    where = [f"http://127.0.0.1:{number}" for number in ports]
    return Plan(
        gateway=f"http://127.0.0.1:{_free(port)}" if gateway else None,
        engines=dict(zip(MODELS, where, strict=True)),
        starts_engines=engines,
        config=file,
        key=key,
    )


def _free(port: int) -> int:
    """The port, or a free one for 0. Raises Refused if something listens there already."""
    try:
        with socket.create_server(("127.0.0.1", port)) as listener:
            number: int = listener.getsockname()[1]
    except OSError as error:
        raise Refused(f"port {port} cannot be had ({os.strerror(error.errno or 0)}); choose another one") from None
    return number


async def _changes(own: Path | None) -> AsyncIterator[set[Path]]:
    """The files that changed, each time some did."""
    from watchfiles import PythonFilter, awatch

    from headrace.cli.dev.run import PACKAGE

    python = PythonFilter()
    folders = {PACKAGE, *(path for path in PACKAGE.rglob("*") if path.is_dir() and path.name != "__pycache__")}
    if own is not None:
        folders.add(own.parent)  # not the file: editors put a new one in its place
    async for changes in awatch(*folders, watch_filter=None, recursive=False):
        paths = {Path(path) for change, path in changes if path == str(own) or _is_code(path, python(change, path))}
        if paths:
            yield paths


def _is_code(path: str, is_python: bool) -> bool:
    from headrace.cli.dev.run import PACKAGE

    return is_python and Path(path).is_relative_to(PACKAGE)
