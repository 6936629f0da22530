"""`headrace serve`: the gateway as a process."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace import __version__
from headrace.cli import Refused
from headrace.cli.options import ConfigFile, choose
from headrace.config import Config

if TYPE_CHECKING:
    from headrace.runtime.journal import Journal
    from headrace.server.settings import ServerSettings


def serve(
    *,
    config: ConfigFile = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 8080 by default; 0 takes a free one.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on, 127.0.0.1 by default.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="Only this engine: echo, a URL, KIND=URL, or KIND on this machine (vllm, ollama, ...)."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model that --engine serves; else any name.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Processes that share the port, 1 by default. Linux only.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="fair, round_robin or fifo.")] = None,
    talk: Annotated[bool, typer.Option("--chat", help="Also talk to it in this terminal.")] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen on other than loopback, although there are no keys yet.")
    ] = False,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    journal: Annotated[Path | None, typer.Option(help="Write a line there for each request, without its text.")] = None,
    journal_names: Annotated[
        bool, typer.Option("--journal-names", help="With users, tenants and sessions as they are, not hashed.")
    ] = False,
) -> None:
    """Start the gateway. Without a file it uses the engines that the environment names, else the built-in echo."""
    from headrace.cli.greeting import greeting, listed_models, sample_model, with_listed
    from headrace.cli.logs import configure

    flags: dict[str, object] = {"server.port": port, "server.host": host, "server.workers": workers}
    flags["server.insecure"] = insecure or None
    flags["server.log_level"] = log_level or ("warning" if talk else None)
    flags["scheduling.policy"] = policy
    chosen = choose(config, os.environ, flags, engine=engine, model=model)
    configure(chosen.config.server.log_level, chosen.config.server.log_format, for_good=True)
    listed = listed_models(chosen.config)
    chosen = with_listed(chosen, listed, os.environ)
    sample = sample_model(chosen.config, listed)
    print("\n".join(greeting(chosen, __version__)), flush=True)
    _start(chosen.config, sample, journal, plain=journal_names, talk=talk)


def _start(config: Config, sample: str, journal: Path | None, *, plain: bool, talk: bool) -> None:
    """One process, or several."""
    if config.server.workers == 1:
        _run(config, sample, open_journal(journal, plain=plain), talk=talk)
    elif talk:
        raise Refused("--chat goes with one worker only")
    else:
        from headrace.cli.serve_workers import serve_workers

        raise typer.Exit(serve_workers(config, sample, journal, plain=plain))


def open_journal(path: Path | None, *, plain: bool, salted_as: Path | None = None) -> Journal | None:
    """The journal that is asked for, with the salt of another if that is named. Raises Refused when it cannot be
    written."""
    from headrace.runtime.journal import Journal

    if path is None:
        return None
    journal = Journal(path, plain=plain, salted_as=salted_as)
    try:
        journal.check()
    except OSError as error:
        raise Refused(f"cannot write the journal {error.filename or path}: {error.strerror}") from None
    return journal


def _run(config: Config, sample: str, journal: Journal | None, *, talk: bool) -> None:
    """Listen, say so, and serve until told to stop."""
    from prometheus_client import CollectorRegistry

    from headrace.build import build
    from headrace.cli.greeting import base_url, invitation
    from headrace.server import listen, run
    from headrace.server.ports import GatewayPort

    server, settings, registry = config.server, server_settings(config), CollectorRegistry()
    try:
        listener = listen(server.host, server.port)
    except OSError as error:
        raise no_address(config, error) from error
    url = base_url(server.host, listener.getsockname()[1], secure=settings.tls is not None)
    print("\n".join(invitation(url, sample)), flush=True)
    if talk:
        threading.Thread(target=_converse, args=(url,), name="chat", daemon=True).start()

    async def open_gateway() -> GatewayPort:
        return await build(config, registry=registry, journal=journal).start()

    raise typer.Exit(run(open_gateway, settings, registry, listener))


def no_address(config: Config, error: OSError) -> Refused:
    """That, and why, the address cannot be listened on."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    taken = "; another port is chosen with --port, 0 takes a free one" if error.errno == errno.EADDRINUSE else ""
    return Refused(f"cannot listen on {config.server.host}:{config.server.port} ({reason}){taken}")


def server_settings(config: Config) -> ServerSettings:
    """What the front door is told. Raises Refused for files of TLS that cannot be used."""
    from headrace.server.serving import tls_context
    from headrace.server.settings import AdminSettings, ServerSettings

    server, admin = config.server, config.admin
    if server.tls_key is not None and server.tls_certificate is None:
        raise Refused("server.tls_key belongs to a server.tls_certificate, and there is none")
    try:
        tls = None if server.tls_certificate is None else tls_context(server.tls_certificate, server.tls_key)
    except OSError as error:
        raise Refused(f"server.tls_certificate and server.tls_key cannot be used ({error.strerror or error})") from None
    return ServerSettings(
        body_limit=server.body_limit_bytes,
        bodies_limit=server.bodies_limit_bytes,
        body_timeout=server.body_timeout_seconds,
        stall_timeout=server.stall_timeout_seconds,
        answer_limit=server.answer_limit_bytes,
        dedup=config.dedup.mode,
        dedup_scope=config.dedup.scope,
        queue_note_after=server.queue_comment_after_seconds,
        queue_note_every=server.queue_comment_every_seconds,
        drain_grace=server.drain_seconds,
        workers=server.workers,
        tls=tls,
        admin=AdminSettings(key=config.admin_key(), listed=admin.listed(), key_variables=admin.key_variables),
    )


def _converse(url: str) -> None:
    """The terminal prompt beside the API; when it ends, the gateway is told to stop like by Ctrl-C."""
    from headrace.cli.chat import converse, gateway_answer, login

    try:
        converse(gateway_answer(url, None, login()), [])
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
