"""`headrace serve --workers N`: the gateway as several processes that share a port."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from headrace.build import build
from headrace.cli import Refused
from headrace.cli.greeting import base_url, invitation
from headrace.cli.logs import configure
from headrace.cli.serve import no_address, open_journal, server_settings
from headrace.config import Config
from headrace.config.worker_share import crowded, share
from headrace.runtime.journal import Journal
from headrace.server import listen, run
from headrace.server.ports import GatewayPort
from headrace.server.serving import reserve
from headrace.server.siblings import Siblings
from headrace.server.supervisor import Forked, Supervisor

_log = structlog.get_logger("headrace.server")


def serve_workers(config: Config, sample: str, journal: Path | None, *, plain: bool) -> int:
    """Run the workers until told to stop; the exit code. Raises Refused where that cannot be done."""
    if sys.platform != "linux":
        raise Refused("--workers needs Linux: elsewhere the system does not deal connections out to processes")
    server = config.server
    journal_of(journal, 0, plain=plain)  # said now what would be said by each worker
    secure = server_settings(config).tls is not None
    try:
        holder = reserve(server.host, server.port)
    except OSError as error:
        raise no_address(config, error) from error
    if found := crowded(config, server.workers):
        _log.warning("instances with fewer places than workers get one request from each worker", instances=found)
    directory = Path(tempfile.mkdtemp(prefix="headrace-"))
    port = int(holder.getsockname()[1])
    part = _Part(
        config, port, directory, journal, plain, tuple(invitation(base_url(server.host, port, secure=secure), sample))
    )
    try:
        return Supervisor(Forked(part.work), server.workers).run()
    finally:
        holder.close()
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Part:
    """What every worker is told."""

    config: Config
    port: int
    directory: Path
    """What the workers share while they run."""
    journal: Path | None
    plain: bool
    greeting: Sequence[str]

    def work(self, worker: int, lifeline: int) -> int:
        """A worker's life; the exit code."""
        server = self.config.server
        configure(server.log_level, server.log_format, worker, for_good=True)
        registry, mine = CollectorRegistry(), share(self.config, worker, server.workers)
        noted = journal_of(self.journal, worker, plain=self.plain)
        listener = listen(server.host, self.port, shared=True)
        self._greet()

        def orphaned() -> None:
            asyncio.get_running_loop().remove_reader(lifeline)
            os.kill(os.getpid(), signal.SIGTERM)

        async def open_gateway() -> GatewayPort:
            asyncio.get_running_loop().add_reader(lifeline, orphaned)
            with (self.directory / "opening").open("a") as turn:
                fcntl.flock(turn, fcntl.LOCK_EX)  # one after the other: the first makes the tables
                return await build(mine, registry=registry, journal=noted).start()

        return run(
            open_gateway, server_settings(mine), registry, listener, Siblings(self.directory, worker, server.workers)
        )

    def _greet(self) -> None:
        """Whoever listens first says so."""
        with suppress(FileExistsError):
            (self.directory / "greeted").touch(exist_ok=False)
            count = self.config.server.workers
            print("\n".join((*self.greeting, f"  {count} workers, each with its share of every engine")), flush=True)


def journal_of(path: Path | None, worker: int, *, plain: bool) -> Journal | None:
    """A worker's own journal; all have one salt, so that a user is the same in each. Raises Refused."""
    return None if path is None else open_journal(numbered(path, worker), plain=plain, salted_as=path)


def numbered(path: Path, worker: int) -> Path:
    """Where a worker writes what the only one would write to `path`: `journal.ndjson` becomes `journal-2.ndjson`."""
    return path.with_name(f"{path.stem}-{worker}{path.suffix}")
