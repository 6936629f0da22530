"""The journal: one line of JSON for each request that ended, so that traffic can be looked at and simulated again.

No prompts and no answers are in it, and nobody's name unless that is asked for: tenants, users, sessions and request
ids are hashed with a salt that lies beside the file, readable by its owner only. Who has only the journal cannot try
names out; without the salt nobody can.

The observer notes and returns. Once a second a thread hashes, encodes and writes what was noted, so the disk is never
in the way of a request. A disk that fails is logged once, and what could not be written is lost and counted. Lines are
whole: what a full disk or a kill left of one is cut off.

Bounds: `MOST_NOTED` requests between two writes, `most_bytes` for a file, `KEPT` older files (FILE.1 is the newest).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from io import FileIO
from itertools import pairwise
from pathlib import Path

import msgspec
import structlog

from headrace.model import (
    AnswerForm,
    Arrived,
    CacheResult,
    Decision,
    Dispatch,
    Ending,
    Event,
    Finished,
    Join,
    Request,
    Settle,
    Started,
    Usage,
)

VERSION = 1
"""Of the format; it is the value of `headrace_journal` in each header line."""
MOST_NOTED = 50_000
MOST_BYTES = 64 * 1024 * 1024
KEPT = 4
FLUSH_SECONDS = 1.0
_SALT_BYTES = 16
_LONGEST_NAME = 256
_LONGEST_LINE = 64 * 1024
_log = structlog.get_logger(__name__)


class Header(msgspec.Struct, kw_only=True):
    """The first line of a file, and of each start of a gateway in it."""

    headrace_journal: int
    started: float
    """Wall time in seconds at which `at` is 0 in the lines that follow."""
    names: str
    """hashed or plain."""


class Line(msgspec.Struct, rename={"service_class": "class"}, kw_only=True):
    """One request. Times are seconds."""

    at: float
    """Arrival, after the header's `started`."""
    id: str
    tenant: str
    user: str
    service_class: str
    session: str
    model: str
    endpoint: str
    stream: bool
    prompt_tokens: int
    """As the engine reported it, else the estimate."""
    output_tokens: int
    """As the engine reported it, else counted; 0 where nothing was produced."""
    cached_tokens: int
    estimated: bool
    """The counts are not the engine's own."""
    output_cap: int | None
    wait: float | None
    """In the queue before the first dispatch; None: never sent, or answered by another one's call."""
    first_token: float | None
    """Arrival to the first content."""
    took: float
    """Arrival to the end."""
    instance: str
    attempts: int
    resumes: int = 0
    """How many times the answer broke off and was taken up again."""
    cache: str
    ending: str


@dataclass(slots=True)
class _Open:
    """What is known of a request that has not ended."""

    request: Request
    arrived: float
    wait: float | None = None
    joined: float = 0.0


@dataclass(slots=True)
class _Call:
    """What is known of a call that has not ended."""

    members: int = 0
    started: float | None = None


@dataclass(slots=True)
class _Noted:
    """A request that has ended and waits to be written."""

    open: _Open
    settled: Settle
    first: float | None
    ended: float


class Journal:
    """Writes a journal; an observer of the gateway's steps.

    Args:
        path: the file; it is continued if it is there.
        plain: write names as they are.
        most_bytes: size of a file, about, after which the next one begins.
        wall: wall clock in seconds.
        salted_as: another journal, whose salt is taken, so that a name has the same hash in both.
    """

    def __init__(
        self,
        path: Path,
        *,
        plain: bool = False,
        most_bytes: int = MOST_BYTES,
        wall: Callable[[], float] = time.time,
        salted_as: Path | None = None,
    ) -> None:
        self.lost = 0
        """Requests that could not be written."""
        self._path = path
        self._salted_as = salted_as or path
        self._plain = plain
        self._most_bytes = most_bytes
        self._wall = wall
        self._open: dict[str, _Open] = {}
        self._calls: dict[str, _Call] = {}
        self._noted: list[_Noted] = []
        self._broken = False
        self._began = 0.0
        self._header = b""
        self._salt = b""
        self._file: FileIO | None = None
        self._closing = asyncio.Event()
        self._flushing: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ life

    def check(self) -> None:
        """Make the file and its salt, if they are not there; raises OSError when it cannot be written."""
        self._salt = b"" if self._plain else _salt(self._salted_as.with_name(self._salted_as.name + ".salt"))
        self._opened()
        self._shut()

    def start(self) -> None:
        """From now on: what arrives now is at 0. In the event loop that runs the gateway. Raises OSError as `check`."""
        self._began = asyncio.get_running_loop().time()
        header = Header(headrace_journal=VERSION, started=self._wall(), names="plain" if self._plain else "hashed")
        self._header = msgspec.json.encode(header) + b"\n"
        self.check()
        self._append(self._header)
        self._flushing = asyncio.create_task(self._flush_for_ever(), name="journal")

    async def close(self) -> None:
        """Write what was noted, and close the file."""
        self._closing.set()
        if self._flushing is not None:
            await self._flushing
        await self.flush()
        self._shut()

    async def flush(self) -> None:
        """Write what was noted, in a thread. A failure is logged once."""
        noted, self._noted = self._noted, []
        try:
            await asyncio.to_thread(self._write, noted)
        except OSError as error:
            self.lost += len(noted)
            if not self._broken:
                _log.warning("journal cannot be written", path=str(self._path), reason=error.strerror or str(error))
            self._broken = True
        else:
            if self._broken and noted:
                _log.info("journal is written again", path=str(self._path), lost=self.lost)
                self._broken = False

    async def _flush_for_ever(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._closing.wait()
            await self.flush()

    @property
    def remembered(self) -> int:
        """Requests and calls that have not ended."""
        return len(self._open) + len(self._calls)

    # ------------------------------------------------------------------ what is seen

    def __call__(self, event: Event, decisions: Sequence[Decision], now: float) -> None:
        """Note one step."""
        if type(event) is Arrived:
            self._open[event.request.id] = _Open(event.request, now)
        elif type(event) is Started or (type(event) is Finished and event.outcome.committed):
            call = self._calls.get(event.call)
            if call is not None and call.started is None:
                call.started = now
        for decision in decisions:
            if type(decision) is Settle:
                self._settled(decision, now)
            elif type(decision) is Dispatch:
                if decision.attempt == 1 and (leader := self._open.get(decision.request.id)) is not None:
                    leader.wait = decision.waited
            elif type(decision) is Join:
                self._joined(decision, now)

    def _joined(self, join: Join, now: float) -> None:
        call = self._calls.get(join.call)
        if call is None:
            call = self._calls[join.call] = _Call()
        call.members += 1
        if (joined := self._open.get(join.ticket)) is not None:
            joined.joined = now

    def _settled(self, settled: Settle, now: float) -> None:
        known = self._open.pop(settled.ticket, None)
        started = self._left(settled.call)
        if known is None:
            return
        if len(self._noted) >= MOST_NOTED:
            self.lost += 1
            return
        if settled.cache is CacheResult.HIT and settled.ending is Ending.ANSWERED:
            started = now
        first = None if started is None else max(started, known.joined) - known.arrived
        self._noted.append(_Noted(known, settled, first, now))

    def _left(self, name: str) -> float | None:
        """A request has left a call, the last one takes the call along. When the call's content began."""
        call = self._calls.get(name)
        if call is None:
            return None
        call.members -= 1
        if call.members <= 0:
            del self._calls[name]
        return call.started

    # ------------------------------------------------------------------ what is written, in a thread

    def _write(self, noted: Sequence[_Noted]) -> None:
        """Append lines; a file that is full is put aside first. Raises OSError."""
        if not noted:
            return
        if self._opened().seek(0, os.SEEK_END) > self._most_bytes:
            self._shut()
            self._put_aside()
            self._append(self._header)
        self._append(b"".join(msgspec.json.encode(self._line(one)) + b"\n" for one in noted))

    def _append(self, data: bytes) -> None:
        """All of it or nothing."""
        file = self._opened()
        before, left = file.seek(0, os.SEEK_END), memoryview(data)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(before)
            self._shut()
            raise

    def _opened(self) -> FileIO:
        if self._file is None:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._file = FileIO(descriptor, "a+b")
            _mend(self._file)
        return self._file

    def _shut(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _put_aside(self) -> None:
        """FILE becomes FILE.1, FILE.1 becomes FILE.2, and so on; the oldest goes."""
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{number}") for number in range(1, KEPT + 1))]
        for newer, older in reversed(list(pairwise(names))):
            if newer.exists():
                newer.replace(older)

    def _line(self, noted: _Noted) -> Line:
        request, settled = noted.open.request, noted.settled
        usage = settled.usage or Usage(request.prompt_tokens, estimated=True)
        return Line(
            at=round(max(0.0, noted.open.arrived - self._began), 4),
            id=self._name(request.id),
            tenant=self._name(request.flow.tenant),
            user=self._name(request.flow.user),
            service_class=request.flow.service_class.value,
            session=self._name(request.flow.session),
            model=_sound(request.model),
            endpoint=request.endpoint,
            stream=request.form is AnswerForm.STREAM,
            prompt_tokens=usage.prompt,
            output_tokens=usage.completion,
            cached_tokens=usage.cached,
            estimated=usage.estimated,
            output_cap=request.output_cap,
            wait=_rounded(noted.open.wait),
            first_token=_rounded(noted.first),
            took=round(noted.ended - noted.open.arrived, 4),
            instance=settled.instance,
            attempts=settled.attempts,
            resumes=settled.resumes,
            cache=settled.cache.value,
            ending=settled.ending.value,
        )

    def _name(self, name: str) -> str:
        """Sixteen hexadecimal digits in place of a name; nothing in place of nothing."""
        if self._plain or not name:
            return _sound(name)
        return blake2b(name.encode(errors="surrogatepass"), digest_size=8, key=self._salt).hexdigest()


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _sound(name: str) -> str:
    """A name as it can be written: of bounded length, and without halves of characters."""
    return name[:_LONGEST_NAME].encode(errors="replace").decode()


def _mend(file: FileIO) -> None:
    """Cut off the line without an end that a kill left behind."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _LONGEST_LINE))
    tail = file.read(_LONGEST_LINE)
    if tail and not tail.endswith(b"\n"):
        file.truncate(size - len(tail) + tail.rfind(b"\n") + 1)


def _salt(path: Path) -> bytes:
    """The salt that lies there; a new one if there is none. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        found = path.read_bytes()[:64]
        if len(found) < _SALT_BYTES:
            raise OSError(errno.EINVAL, "there is no salt in it", str(path)) from None
        return found
    with os.fdopen(descriptor, "wb") as file:
        salt = secrets.token_bytes(_SALT_BYTES)
        file.write(salt)
    return salt
