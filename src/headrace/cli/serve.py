"""`headrace serve`: the gateway as a process."""

from __future__ import annotations

import os
import signal
import threading
from typing import Annotated

import typer

from headrace.cli.options import ConfigFile, choose


def serve(
    *,
    config: ConfigFile = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 8080 by default; 0 takes a free one.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on, 127.0.0.1 by default.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="Only this engine: echo, a URL, or KIND=URL (vllm, llamacpp, ollama, openai).")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model that --engine serves; else any name.")] = None,
    policy: Annotated[str | None, typer.Option(help="fair, round_robin or fifo.")] = None,
    talk: Annotated[bool, typer.Option("--chat", help="Also talk to it in this terminal.")] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen on other than loopback, although there are no keys yet.")
    ] = False,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Start the gateway. Without a file it uses the engines that the environment names, else the built-in echo."""
    from headrace.cli.greeting import greeting, invitation, listed_models, narrowed, sample_model
    from headrace.cli.logs import configure
    from headrace.cli.version import number

    flags: dict[str, object] = {
        "server.port": port,
        "server.host": host,
        "server.insecure": insecure or None,
        "server.log_level": log_level or ("warning" if talk else None),
        "scheduling.policy": policy,
    }
    chosen = choose(config, os.environ, flags, engine=engine, model=model)
    configure(chosen.config.server.log_level, chosen.config.server.log_format)
    listed = listed_models(chosen.config)
    chosen = narrowed(chosen, listed, os.environ)
    sample = sample_model(chosen.config, listed)
    print("\n".join(greeting(chosen, listed, number())), flush=True)

    def ready(url: str) -> None:
        print("\n".join(invitation(url, sample)), flush=True)
        if talk:
            threading.Thread(target=_converse, args=(url,), name="chat", daemon=True).start()

    from headrace.server import run

    run(chosen.config, on_ready=ready)


def _converse(url: str) -> None:
    """The terminal prompt beside the API; when it ends, the gateway is told to stop like by Ctrl-C."""
    from headrace.cli.chat import converse, gateway_answer, login

    try:
        converse(gateway_answer(url, None, login()), [])
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
