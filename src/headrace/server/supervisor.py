"""Several worker processes as one: started, looked after, and stopped together.

A worker that ends although nobody told it to is started again after a pause, which doubles with each end that comes
soon after a start; one that keeps dying at once ends them all, because nothing would change by trying on. The first
SIGTERM or SIGINT lets all workers drain, the second ends them at once. The exit code is 0 if all ended as they were
told to.

Bounds: a pause is at most `LONGEST_PAUSE`; `HOPELESS` quick ends in a row of one worker are the last.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Protocol

import structlog

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
STEADY = 10.0
"""Seconds after which an end is no longer a quick one."""
HOPELESS = 5

_STOP = (signal.SIGTERM, signal.SIGINT)
_log = structlog.get_logger("headrace.server")


class Processes(Protocol):
    """The operating system, as far as a supervisor needs it."""

    def start(self, worker: int) -> int:
        """Start a worker; its process id."""
        ...

    def wait(self, seconds: float | None) -> bool:
        """Wait until a process ended (False), the supervisor was told to stop (True), or the time is over (False)."""
        ...

    def ended(self) -> Iterable[tuple[int, int]]:
        """Processes that ended since the last call, as (process id, exit code)."""
        ...

    def stop(self, process: int) -> None:
        """Tell a process to end."""
        ...

    def now(self) -> float:
        """Monotonic seconds."""
        ...


class Supervisor:
    """Keeps so many workers running until it is told to stop."""

    def __init__(self, processes: Processes, workers: int) -> None:
        self._processes = processes
        self._workers = workers
        self._running: dict[int, tuple[int, float]] = {}
        """Worker and start time by process id."""
        self._quick = [0] * workers
        """Quick ends in a row of each worker."""
        self._due: dict[int, float] = {}
        """When a worker is to be started again."""
        self._stopping = False
        self._code = 0

    def run(self) -> int:
        """Start all, and return when all have ended: 0 if they did as they were told."""
        for worker in range(self._workers):
            self._start(worker)
        while self._running or self._due:
            now = self._processes.now()
            if self._processes.wait(min((due - now for due in self._due.values()), default=None)):
                self._stop()
            for process, code in self._processes.ended():
                self._ended(process, code)
            now = self._processes.now()
            for worker in [worker for worker, due in self._due.items() if due <= now]:
                del self._due[worker]
                self._start(worker)
        return self._code

    def _start(self, worker: int) -> None:
        self._running[self._processes.start(worker)] = (worker, self._processes.now())

    def _stop(self) -> None:
        self._stopping = True
        self._due.clear()
        for process in self._running:
            self._processes.stop(process)

    def _ended(self, process: int, code: int) -> None:
        worker, since = self._running.pop(process, (-1, 0.0))
        if worker < 0:
            return
        if self._stopping:
            # One that was just starting knows no better way to end, and had nothing to finish.
            self._code = self._code or int(code not in (0, -signal.SIGTERM))
            return
        now = self._processes.now()
        self._quick[worker] = self._quick[worker] + 1 if now - since < STEADY else 1
        if self._quick[worker] >= HOPELESS:
            _log.error("a worker cannot be kept alive", worker=worker, exit_code=code)
            self._code = 1
            self._stop()
            return
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (self._quick[worker] - 1))
        self._due[worker] = now + pause
        _log.warning("a worker ended and is started again", worker=worker, exit_code=code, seconds=pause)


class Forked:
    """Workers as forks of this process, which has no other thread and no event loop. Linux only.

    `serve` is a worker's whole life, given its number and a file that ends when the supervisor is gone; it returns the
    exit code. Signals reach the supervisor only while it waits, so none is lost and none interrupts anything.
    """

    def __init__(self, serve: Callable[[int, int], int]) -> None:
        self._serve = serve
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOP, signal.SIGCHLD))
        self._lifeline, self._held = os.pipe()

    def start(self, worker: int) -> int:
        """See `Processes`."""
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            self._live(worker)
        return process

    def wait(self, seconds: float | None) -> bool:
        """See `Processes`."""
        wanted = (*_STOP, signal.SIGCHLD)
        if seconds is None:
            return signal.sigwaitinfo(wanted).si_signo in _STOP
        told = signal.sigtimedwait(wanted, max(0.0, seconds))
        return told is not None and told.si_signo in _STOP

    def ended(self) -> Iterable[tuple[int, int]]:
        """See `Processes`."""
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            yield process, os.waitstatus_to_exitcode(status)

    def stop(self, process: int) -> None:
        """See `Processes`."""
        os.kill(process, signal.SIGTERM)

    def now(self) -> float:
        """See `Processes`."""
        return time.monotonic()

    def _live(self, worker: int) -> None:
        """A worker's life, from its birth to its end; never returns."""
        code = 1
        try:
            os.close(self._held)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
            code = self._serve(worker, self._lifeline)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        except Exception:  # noqa: BLE001 - the process's outer edge
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
