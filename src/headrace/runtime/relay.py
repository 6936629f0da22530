"""One answer, one to many readers: bytes pushed through, bounded, with backpressure to the engine.

A relay belongs to one call. The upstream pushes frames in; the relay pushes them on to every reader at once, in the
same call stack: there is no task, no lock and no future here. Frames a reader has not taken yet wait in one shared log,
each reader being only a position in it.

**The slow-reader rule.** A reader whose `write` returned False is *behind* until it resumes. The source is paused while

* every reader is behind (a lone slow reader sets the pace), or
* a reader lags by `lag_frames` frames, until it is down to half of that, or
* the frames held only because somebody has not taken them exceed `keep_bytes`, until they are down to half.

So one slow reader of a shared answer does not hold up the others, up to the bound, and then the slowest sets the pace:
nothing is dropped and memory is bounded. What a late joiner has to catch up with does not count as its lag while the
relay keeps it anyway.

**Keeping.** While `keep` is on, the answer is kept from its first frame for late joiners and the cache. Past
`keep_bytes` the relay is *sealed*: nobody can join any more, but those who are behind still get their rest.

Memory: `keep_bytes` plus what one read of the source carries. Readers that were told to end while behind take their
rest with them; they count no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.errors import Fault
from headrace.model import AnswerForm, CacheResult, Ending
from headrace.wire.frames import Frame

KEEP_BYTES = 4 * 1024 * 1024
LAG_FRAMES = 256


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What is known of an answer when it begins; the server makes its response headers of it.

    `waited` is the time in the queue in seconds; `cache` is the reader's own: the same answer is a MISS for the one who
    caused it and JOINED for the others; one from the cache is a HIT for all.
    """

    instance: str
    model: str
    attempts: int
    waited: float
    form: AnswerForm
    cache: CacheResult


class Reader(Protocol):
    """One caller's end. Its methods must not raise and must not wait; they may call back into the relay."""

    wants_usage: bool

    def begin(self, head: AnswerHead) -> None:
        """Once, just before the first write."""
        ...

    def write(self, data: bytes) -> bool:
        """Takes the bytes in any case. False: enough for now; the reader calls the `resume` it was attached with."""
        ...

    def end(self, ending: Ending, fault: Fault | None) -> None:
        """Exactly once, after the last write, unless the reader was detached. `begin` may never have happened."""
        ...


class Source(Protocol):
    """Where frames come from. Both calls are harmless when repeated and after its end."""

    def pause(self) -> None:
        """Nothing more for now."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...


class Relay:
    """Pushes one call's answer to its readers.

    `keep`: hold everything for late joiners and the cache, up to `keep_bytes`; past it `on_sealed` is called once.
    """

    def __init__(
        self,
        *,
        keep: bool,
        keep_bytes: int = KEEP_BYTES,
        lag_frames: int = LAG_FRAMES,
        on_sealed: Callable[[], None],
    ) -> None:
        self._keep = keep
        self._keep_bytes = keep_bytes
        self._lag_frames = lag_frames
        self._on_sealed = on_sealed
        self._head: AnswerHead | None = None
        self._source: Source | None = None
        self._paused = False
        self._lagging = False
        self._log = _Log()
        self._seats: dict[int, _Seat] = {}
        self._leaving: dict[int, _Seat] = {}

    @property
    def source(self) -> Source | None:
        """The attempt that feeds this relay. A new one is paused at once if the readers ask for it."""
        return self._source

    @source.setter
    def source(self, source: Source | None) -> None:
        self._source = source
        if source is not None and self._paused:
            source.pause()

    @property
    def kept(self) -> tuple[Frame, ...] | None:
        """Every frame so far; None when nothing is kept or the answer grew past the bound."""
        return tuple(self._log.frames) if self._keep else None

    @property
    def sealed(self) -> bool:
        """The beginning of the answer is gone: nobody can be attached any more."""
        return not self._keep and self._log.end > 0

    @property
    def readers(self) -> int:
        """How many readers are attached and were not told to end."""
        return len(self._seats)

    def open(self, head: AnswerHead) -> None:
        """The winning attempt is known: what readers are told before their first byte."""
        self._head = head

    def feed(self, frame: Frame) -> None:
        """Pushes a frame to every reader.

        Raises RuntimeError when the relay was not opened before.
        """
        if self._head is None:
            raise RuntimeError("a relay is opened before it is fed")
        if len(self._seats) == 1:
            (seat,) = self._seats.values()
            up_to_date = seat.at == self._log.end if self._keep else not self._log.frames
            if up_to_date and not (seat.behind or seat.busy):
                self._hand_over(seat, frame)
                return
        self._append(frame)
        for seat in tuple(self._seats.values()):
            self._pump(seat)
        self._settle()

    def attach(self, reader: Reader, cache: CacheResult) -> Callable[[], None]:
        """Gives a reader everything kept so far, then each frame as it comes.

        Returns what the reader calls when it can take more. Raises RuntimeError when the beginning is gone: the caller
        must not join a sealed call.
        """
        if self.sealed:
            raise RuntimeError("the beginning of this answer is no longer kept")
        seat = _Seat(reader, cache, joined=self._log.end)
        self._seats[id(reader)] = seat
        if self._log.end:
            self._pump(seat)
            self._settle()

        def resume() -> None:
            self._resume(seat)

        return resume

    def detach(self, reader: Reader) -> None:
        """The caller left: nothing is written or told to it any more. Harmless when it is not attached."""
        seat = self._seats.pop(id(reader), None) or self._leaving.pop(id(reader), None)
        if seat is not None:
            seat.gone = True
            self._settle()

    def end(self, reader: Reader, ending: Ending, fault: Fault | None) -> None:
        """Tells a reader how its request ended, once it has taken what was fed until now. Later frames pass it by."""
        seat = self._seats.pop(id(reader), None)
        if seat is None:
            return
        if seat.at >= self._log.end and not seat.behind and not seat.busy:
            # The usual case: it has everything.
            seat.gone = True
            reader.end(ending, fault)
            self._settle()
            return
        seat.ending = (ending, fault)
        seat.rest = deque(frame for frame in self._log.since(seat.at) if seat.wants(frame))
        self._leaving[id(reader)] = seat
        self._pump(seat)
        self._settle()

    def _hand_over(self, seat: _Seat, frame: Frame) -> None:
        """The short way of the usual case: one reader, which has everything until now."""
        if self._keep:
            self._append(frame)
        else:
            self._log.skip()
        seat.at = self._log.end
        if seat.wants(frame):
            seat.busy = True
            try:
                self._write(seat, frame.data)
            finally:
                seat.busy = False
        held = seat.at != self._log.end if self._keep else self._log.frames
        if held or seat.behind or seat.gone or seat.ending is not None:
            self._pump(seat)
            self._settle()

    def _append(self, frame: Frame) -> None:
        self._log.append(frame)
        if self._keep and self._log.size > self._keep_bytes:
            self._seal()

    def _resume(self, seat: _Seat) -> None:
        if seat.busy:
            seat.nudged = True
        elif seat.behind and not seat.gone:
            seat.behind = False
            self._pump(seat)
            self._settle()

    def _pump(self, seat: _Seat) -> None:
        """Writes what the seat has not got yet, until it says enough; then its ending, when that is due.

        A reader that calls back into the relay from its write finds its seat busy: the loop further up goes on.
        """
        if seat.busy:
            return
        seat.busy = True
        try:
            while not seat.behind and not seat.gone:
                frame = self._next(seat)
                if frame is None:
                    break
                if seat.wants(frame):
                    self._write(seat, frame.data)
        finally:
            seat.busy = False
        if seat.ending is not None and not seat.rest and not seat.gone:
            seat.gone = True
            self._leaving.pop(id(seat.reader), None)
            seat.reader.end(*seat.ending)

    def _next(self, seat: _Seat) -> Frame | None:
        if seat.rest is not None:
            return seat.rest.popleft() if seat.rest else None
        if seat.at >= self._log.end:
            return None
        frame = self._log.at(seat.at)
        seat.at += 1
        return frame

    def _write(self, seat: _Seat, data: bytes) -> None:
        if not seat.begun:
            seat.begun = True
            assert self._head is not None
            head = self._head
            if head.cache is not seat.cache and head.cache is not CacheResult.HIT:
                head = replace(head, cache=seat.cache)
            seat.reader.begin(head)
            if seat.gone:
                return
        seat.nudged = False
        if not seat.reader.write(data) and not seat.nudged:
            seat.behind = True

    def _seal(self) -> None:
        self._keep = False
        self._on_sealed()

    def _settle(self) -> None:
        """Lets go of what everybody has, then tells the source to go on or to wait."""
        behind = [seat for seat in self._seats.values() if seat.behind]
        if not self._keep:
            self._log.forget(min((seat.at for seat in self._seats.values()), default=self._log.end))
        lag = max((self._log.end - max(seat.at, seat.joined) for seat in behind), default=0)
        held = 0 if self._keep else self._log.size
        share = 2 if self._lagging else 1
        self._lagging = bool(behind) and (lag * share >= self._lag_frames or held * share > self._keep_bytes)
        paused = self._lagging or (bool(behind) and len(behind) == len(self._seats))
        if paused == self._paused:
            return
        self._paused = paused
        if self._source is None:
            return
        if paused:
            self._source.pause()
        else:
            self._source.resume()


class _Seat:
    """One reader's place: how far it is, and whether it wants more."""

    __slots__ = ("at", "begun", "behind", "busy", "cache", "ending", "gone", "joined", "nudged", "reader", "rest")

    def __init__(self, reader: Reader, cache: CacheResult, joined: int) -> None:
        self.reader = reader
        self.cache = cache
        self.joined = joined
        self.at = 0
        self.begun = False
        self.behind = False
        self.busy = False
        self.nudged = False
        self.gone = False
        self.ending: tuple[Ending, Fault | None] | None = None
        self.rest: deque[Frame] | None = None

    def wants(self, frame: Frame) -> bool:
        return not frame.usage_only or self.reader.wants_usage


class _Log:
    """Frames by running number; the oldest can be forgotten. `size` is in bytes, of what has not been forgotten."""

    __slots__ = ("_base", "frames", "size")

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.size = 0
        self._base = 0

    @property
    def end(self) -> int:
        """The number the next frame will have."""
        return self._base + len(self.frames)

    def append(self, frame: Frame) -> None:
        self.frames.append(frame)
        self.size += len(frame.data)

    def skip(self) -> None:
        """A frame went by without being held; only while the log is empty."""
        self._base += 1

    def at(self, number: int) -> Frame:
        return self.frames[number - self._base]

    def since(self, number: int) -> list[Frame]:
        return self.frames[number - self._base :]

    def forget(self, number: int) -> None:
        """Drops the frames before `number`."""
        count = number - self._base
        if count <= 0:
            return
        self.size -= sum(len(frame.data) for frame in self.frames[:count])
        del self.frames[:count]
        self._base = number
