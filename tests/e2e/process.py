"""headrace commands as processes of their own, the way people start them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from headrace.testing import Changes
from tests.patience import GUARD

_MAIN = "import sys; from headrace.cli import main; main(sys.argv[1:])"
_URL = re.compile(r"http://127\.0\.0\.1:\d+")
_LISTENS = re.compile(r"Listening on|Ctrl-C stops it")
_LINES_KEPT = 20_000


class Program:
    """One running process. `output` and `log` are its lines so far, of standard output and standard error."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._changes = Changes()
        self.output: deque[str] = deque(maxlen=_LINES_KEPT)
        self.log: deque[str] = deque(maxlen=_LINES_KEPT)
        self.url = ""
        assert process.stdout is not None
        assert process.stderr is not None
        self._readers = (
            asyncio.create_task(self._read(process.stdout, self.output)),
            asyncio.create_task(self._read(process.stderr, self.log)),
        )

    @property
    def memory(self) -> int:
        """Resident memory in bytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024

    @property
    def tracebacks(self) -> list[str]:
        """Log lines that tell of a mistake in the program itself."""
        return [line for line in self.log if "Traceback" in line]

    async def listens(self) -> str:
        """Wait until it says where it listens; the address."""
        await self._changes.until(lambda: self._told() or self._over, GUARD, "the process says where it listens")
        assert self._told(), "\n".join(self.log)
        self.url = next(found.group() for line in self.output if _LISTENS.search(line) and (found := _URL.search(line)))
        return self.url

    async def logged(self, text: str) -> None:
        """Wait for a log line with this text."""
        await self._changes.until(lambda: any(text in line for line in self.log), GUARD, f"a log line with {text}")

    async def printed(self, text: str) -> None:
        """Wait for a line of its output with this text."""
        await self._changes.until(lambda: any(text in line for line in self.output), GUARD, f"output with {text}")

    async def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait until something is true of its lines."""
        await self._changes.until(true, GUARD, what)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        async with asyncio.timeout(GUARD):
            await asyncio.gather(*self._readers)
            return await self._process.wait()

    async def kill(self) -> None:
        """End it without a chance to tidy up. Harmless after its end."""
        if self._process.returncode is None:
            self._process.kill()
        await self.ended()

    def _told(self) -> bool:
        return any(_LISTENS.search(line) for line in self.output)

    @property
    def _over(self) -> bool:
        return all(reader.done() for reader in self._readers)

    async def _read(self, stream: asyncio.StreamReader, lines: deque[str]) -> None:
        async for line in stream:
            lines.append(line.decode(errors="replace").rstrip("\n"))
            self._changes.notify()
        asyncio.get_running_loop().call_soon(self._changes.notify)


def program(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> AbstractAsyncContextManager[Program]:
    """Run `headrace` with these arguments in the directory `cwd`; killed in the end if it still runs."""
    return python("-c", _MAIN, *arguments, cwd=cwd, env=env)


@asynccontextmanager
async def python(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> AsyncIterator[Program]:
    """Run this Python with these arguments in the directory `cwd`; killed in the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=cwd, env=_environment(env or {}), stdout=PIPE, stderr=PIPE
    )
    running = Program(process)
    try:
        yield running
    finally:
        await running.kill()


@asynccontextmanager
async def serving(config: str, cwd: Path) -> AsyncIterator[Program]:
    """`headrace serve` with this YAML, listening at a free port."""
    (cwd / "headrace.yaml").write_text(config)
    async with program("serve", "--config", "headrace.yaml", "--port", "0", cwd=cwd) as running:
        await running.listens()
        yield running


@asynccontextmanager
async def mock_engine(cwd: Path, *arguments: str) -> AsyncIterator[Program]:
    """`headrace mock-engine` with these arguments, listening at a free port."""
    async with program("mock-engine", "--port", "0", *arguments, cwd=cwd) as running:
        await running.listens()
        yield running


async def run(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    """Run one command to its end: exit code, standard output, standard error."""
    async with program(*arguments, cwd=cwd) as running:
        code = await running.ended()
        return code, "\n".join(running.output), "\n".join(running.log)


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """What a process needs of ours, without anything that would name engines or settings to it."""
    passed = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR")
    return {**{name: os.environ[name] for name in passed if name in os.environ}, **extra}
