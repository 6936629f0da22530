"""What the workers of one gateway tell each other: their pages of metrics, so that any of them can show all.

Each worker listens on a socket in a directory that only their owner may enter. A scrape reaches one worker; it asks the
others, and puts `worker="N"` on every sample, because most of what is measured (an instance's speed, a breaker) cannot
be added up. One that does not answer is missing and shown by `headrace_worker_up`.

Bounds: `PATIENCE` seconds for all pages together, `PAGE_LIMIT` bytes for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

PATIENCE = 2.0
PAGE_LIMIT = 16 * 1024 * 1024

_END = b"# EOF"


class Siblings:
    """One of several workers, and the way to the others.

    Args:
        directory: where their sockets are.
        worker: the own number, from 0.
        workers: how many there are.
    """

    def __init__(self, directory: Path, worker: int, workers: int) -> None:
        self._directory = directory
        self._worker = worker
        self._workers = workers
        self._page: Callable[[str], bytes] = lambda _: b""
        self._server: asyncio.Server | None = None

    async def open(self, page: Callable[[str], bytes]) -> None:
        """Begin to answer the others; `page` gives the own metrics for the value of an Accept header."""
        self._page = page
        path = self._path(self._worker)
        path.unlink(missing_ok=True)  # left by the worker that bore this number before
        self._server = await asyncio.start_unix_server(self._tell, path=path)

    async def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._path(self._worker).unlink(missing_ok=True)

    async def page(self, accept: str) -> bytes:
        """The metrics of all workers."""
        others = [worker for worker in range(self._workers) if worker != self._worker]
        pages = await asyncio.gather(*(self._ask(worker, accept) for worker in others))
        return merged({self._worker: self._page(accept), **dict(zip(others, pages, strict=True))})

    async def _ask(self, worker: int, accept: str) -> bytes | None:
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(PATIENCE):
                reader, writer = await asyncio.open_unix_connection(self._path(worker), limit=PAGE_LIMIT)
                writer.write(accept.encode("latin-1", "replace").replace(b"\n", b" ") + b"\n")
                size = int.from_bytes(await reader.readexactly(8), "big")
                return await reader.readexactly(size) if size <= PAGE_LIMIT else None
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return None
        finally:
            if writer is not None:
                writer.close()

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(PATIENCE):
                page = self._page((await reader.readline()).strip().decode("latin-1"))
                writer.write(len(page).to_bytes(8, "big") + page)
                await writer.drain()
        writer.close()

    def _path(self, worker: int) -> Path:
        return self._directory / f"worker-{worker}"


def merged(pages: Mapping[int, bytes | None]) -> bytes:
    """One page of several, by worker; None: that worker did not answer.

    What is said of a metric stands once, before the samples of all workers, as the format wants it.
    """
    about: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    ended = False
    for worker, page in sorted(pages.items()):
        name, first = b"", False
        for line in (page or b"").splitlines():
            if line.startswith(_END):
                ended = True
            elif line.startswith(b"#"):
                named = line.split(b" ", 3)[2]
                if named != name:
                    name, first = named, named not in about
                if first:
                    about.setdefault(name, []).append(line)
            elif line:
                samples.setdefault(name, []).append(_labelled(line, worker))
    lines: list[bytes] = []
    for name, said in about.items():
        lines += said
        lines += samples.get(name, ())
    lines += [b"# HELP headrace_worker_up 1: the worker process answered.", b"# TYPE headrace_worker_up gauge"]
    lines += [b'headrace_worker_up{worker="%d"} %d' % (n, page is not None) for n, page in sorted(pages.items())]
    if ended:
        lines.append(_END)
    return b"\n".join(lines) + b"\n"


def _labelled(sample: bytes, worker: int) -> bytes:
    """`name value` or `name{labels} value` with the worker as its first label."""
    name, brace, rest = sample.partition(b"{")
    if brace and b" " not in name:
        return b'%b{worker="%d",%b' % (name, worker, rest)
    name, _, rest = sample.partition(b" ")
    return b'%b{worker="%d"} %b' % (name, worker, rest)
