"""A process that is kept running: started again when it dies, restarted when asked, stopped in the end.

It runs in a session of its own, so that Ctrl-C in the terminal reaches only the parent, which then stops its children.
Its lines are printed with its name before them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence

_MAIN = "import sys; from headrace.cli import main; main(sys.argv[1:])"
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 16.0
"""Seconds before one that died is started again; doubled each time."""
HEALTHY_AFTER = 10.0
"""Seconds after which one that runs is taken to be well: the next pause is the first one again."""
GRACE = 10.0
"""Seconds it gets to stop by itself."""
LONGEST_LINE = 16_384
"""Bytes after which a line is broken."""


class Child:
    """One `headrace` command as a process.

    Args:
        name: what is printed before its lines.
        arguments: of `headrace`.
        environment: beside the parent's own.
        say: takes each line to print.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self.name = name
        self._arguments = tuple(arguments)
        self._environment = {**os.environ, **environment, "PYTHONUNBUFFERED": "1"}
        self._say = say
        self._process: Process | None = None
        self._restarting = False

    async def run(self) -> None:
        """Keep it running until cancelled; then it is stopped before this returns."""
        pause, now = FIRST_PAUSE, asyncio.get_running_loop().time
        try:
            while True:
                began = now()
                code = await self._once()
                if self._restarting:
                    self._restarting, pause = False, FIRST_PAUSE
                    continue
                if now() - began > HEALTHY_AFTER:
                    pause = FIRST_PAUSE
                self._say(f"{self.name} ended with {_told(code)}; it is started again in {pause:g} s")
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
        finally:
            await self._stop()

    async def restart(self) -> None:
        """Stop it; `run` starts it again at once."""
        if self._process is not None and self._process.returncode is None:
            self._restarting = True
            await self._stop()

    async def _once(self) -> int:
        """One life of the process; its exit code."""
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _MAIN,
            *self._arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env=self._environment,
            start_new_session=True,
        )
        assert process.stdout is not None
        await self._relay(process.stdout)
        return await process.wait()

    async def _relay(self, stream: asyncio.StreamReader) -> None:
        """Print its lines until it closes its output."""
        rest = b""
        while data := await stream.read(LONGEST_LINE):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._say(f"{self.name:<8} | {line.decode(errors='replace').rstrip()}")
        if rest:
            self._say(f"{self.name:<8} | {rest.decode(errors='replace').rstrip()}")

    async def _stop(self) -> None:
        """SIGTERM, and SIGKILL for one that does not heed it within `GRACE`. Harmless after its end."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(GRACE):
                await process.wait()
        except TimeoutError:
            self._say(f"{self.name} did not stop within {GRACE:g} s and is killed")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _told(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
