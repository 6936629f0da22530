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
from typing import Final, Protocol

from msgspec.structs import replace

from headrace.errors import Fault
from headrace.model import CacheResult, Ending
from headrace.runtime.answer_head import AnswerHead
from headrace.wire.frames import Frame

KEEP_BYTES = 4 * 1024 * 1024
LAG_FRAMES = 256
_HIT: Final = CacheResult.HIT


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

    `keep`: hold everything for late joiners and the cache, up to `keep_bytes`; past it `on_sealed` is told once, with
    the `call`.
    """

    __slots__ = (
        "_frames",
        "_keep",
        "_keep_bytes",
        "_lag_frames",
        "_lagging",
        "_on_sealed",
        "_paused",
        "_seats",
        "_shared",
        "_size",
        "_source",
        "call",
        "fed",
        "head",
    )

    def __init__(
        self,
        call: str,
        on_sealed: Callable[[str], None],
        keep: bool,
        keep_bytes: int = KEEP_BYTES,
        lag_frames: int = LAG_FRAMES,
    ) -> None:
        self.call = call
        self._on_sealed = on_sealed
        self._keep = keep
        self._keep_bytes = keep_bytes
        self._lag_frames = lag_frames
        self.head: AnswerHead | None = None
        """What readers are told before their first byte, as soon as the attempt is known that answers."""
        self._shared: AnswerHead | None = None
        """The same for those who share the answer, once one of them was told."""
        self._source: Source | None = None
        self._paused = self._lagging = False
        self._frames: list[Frame] = []
        """The log: the last frames until number `_end`, which the next one will have."""
        self.fed = self._size = 0
        """`_size`: bytes in the log."""
        self._seats: list[Seat] = []
        """Of those who were not told to end."""

    @property
    def source(self) -> Source | None:
        """The attempt that feeds this relay. A new one is paused at once if the readers ask for it."""
        return self._source

    @source.setter
    def source(self, source: Source | None) -> None:
        self._source = source
        if source is not None:
            self._paused = False
            if self.fed:
                self.settle()

    @property
    def kept(self) -> tuple[Frame, ...] | None:
        """Every frame so far; None when nothing is kept or the answer grew past the bound."""
        return tuple(self._frames) if self._keep else None

    @property
    def sealed(self) -> bool:
        """The beginning of the answer is gone: nobody can be attached any more."""
        return not self._keep and self.fed > 0

    def open(self, head: AnswerHead) -> None:
        """The winning attempt is known."""
        self.head = head

    def feed(self, frame: Frame) -> None:
        """Pushes a frame to every reader.

        Raises RuntimeError when the relay was not opened before.
        """
        if self.head is None:
            raise RuntimeError("a relay is opened before it is fed")
        seats, number = self._seats, self.fed
        if len(seats) == 1:
            seat = seats[0]
            ready = seat.at == number and not (seat.behind or seat.busy)
            if ready:
                # The usual case: one reader, which has everything until now; unless all is kept, the log stays empty.
                if self._keep:
                    self._append(frame)
                else:
                    self.fed = number + 1
                seat.take(frame, number)
                if seat.behind or seat.gone or (self._frames and not self._keep):
                    self.settle()
                return
        self._append(frame)
        for seat in tuple(seats):
            seat.take(frame, number)
        self.settle()

    def attach(self, seat: Seat, cache: CacheResult) -> None:
        """Gives a reader everything kept so far, then each frame as it comes.

        `cache` is what it is told of where its answer comes from. Raises RuntimeError when the beginning is gone: the
        caller must not join a sealed call.
        """
        if self.sealed:
            raise RuntimeError("the beginning of this answer is no longer kept")
        seat.relay, seat.cache, seat.joined = self, cache, self.fed
        self._seats.append(seat)
        if self.fed:
            try:
                seat.pump()
            except BaseException:
                self.leave(seat)  # nobody will ever hold it
                raise
            finally:
                self.settle()

    # ------------------------------------------------------------------ for seats

    def head_for(self, cache: CacheResult) -> AnswerHead:
        """What a reader is told whose answer comes from there."""
        head = self.head
        assert head is not None, "a relay is opened before it is fed"
        if head.cache is cache or head.cache is _HIT:
            return head
        shared = self._shared
        if shared is None or shared.cache is not cache:
            shared = self._shared = replace(head, cache=cache)
        return shared

    def since(self, number: int) -> list[Frame]:
        """The frames from `number` on."""
        return self._frames[number - self.fed :] if number < self.fed else []

    def frame(self, number: int) -> Frame | None:
        """Frame `number`; None: it has not come yet."""
        return self._frames[number - self.fed] if number < self.fed else None

    def leave(self, seat: Seat) -> None:
        """A seat gets no more frames. Harmless when it is not there any more."""
        if seat in self._seats:
            self._seats.remove(seat)

    def settle(self) -> None:
        """Lets go of what everybody has, then tells the source to go on or to wait."""
        if self._source is None and (self._keep or not self._frames):
            return  # as when the answer has ended and one reader after the other is told so
        seats, behind, lag, first = self._seats, 0, 0, self.fed
        for seat in seats:
            first = min(first, seat.at)
            if seat.behind:
                behind += 1
                lag = max(lag, self.fed - max(seat.at, seat.joined))
        if not self._keep and self._frames:
            taken = self._frames[: len(self._frames) - (self.fed - first)]
            del self._frames[: len(taken)]
            self._size -= sum([len(frame.data) for frame in taken])
        held = 0 if self._keep else self._size
        share = 2 if self._lagging else 1
        self._lagging = behind > 0 and (lag * share >= self._lag_frames or held * share > self._keep_bytes)
        paused = self._lagging or 0 < behind == len(seats)
        if paused != self._paused:
            self._paused = paused
            if self._source is not None:
                self._source.pause() if paused else self._source.resume()

    # ------------------------------------------------------------------ inside

    def _append(self, frame: Frame) -> None:
        self._frames.append(frame)
        self.fed += 1
        self._size += len(frame.data)
        if self._keep and self._size > self._keep_bytes:
            self._keep = False
            self._on_sealed(self.call)


class Seat:
    """One reader's place at a relay: how far it is, and whether it wants more. Whoever attaches it holds it."""

    __slots__ = (
        "at",
        "begun",
        "behind",
        "busy",
        "cache",
        "ending",
        "gone",
        "joined",
        "nudged",
        "reader",
        "relay",
        "rest",
    )

    relay: Relay
    cache: CacheResult
    """Both are known when it is attached."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.joined = 0
        """How many frames had come before it."""
        self.at = 0
        """The number of the next frame it gets."""
        self.begun = self.behind = self.busy = self.nudged = self.gone = False
        self.ending: tuple[Ending, Fault | None] | None = None
        self.rest: deque[Frame] | None = None
        """What it still gets before it is told its end."""

    # ------------------------------------------------------------------ for whoever attaches it

    def resume(self) -> None:
        """The reader can take more."""
        if self.busy:
            self.nudged = True
        elif self.behind and not self.gone:
            self.behind = False
            self.pump()
            self.relay.settle()

    def leave(self) -> None:
        """The caller left: nothing is written or told to it any more. Harmless after its end."""
        self.gone = True
        self.relay.leave(self)
        self.relay.settle()

    def end(self, ending: Ending, fault: Fault | None) -> None:
        """Tells the reader how its request ended, once it has taken what was fed until now. Later frames pass it by.

        Harmless when it was told, or has left.
        """
        if self.gone or self.ending is not None:
            return
        relay = self.relay
        relay.leave(self)
        if self.at < relay.fed or self.behind or self.busy:
            self.ending, wants = (ending, fault), self.reader.wants_usage
            self.rest = deque([frame for frame in relay.since(self.at) if wants or not frame.usage_only])
            self.pump()
        else:  # the usual case: it has everything
            self.gone = True
            self.reader.end(ending, fault)
        relay.settle()

    # ------------------------------------------------------------------ for the relay

    def take(self, frame: Frame, number: int) -> None:
        """Frame `number` is new: writes it at once to a reader that has all before it and wants more."""
        ready = self.at == number and not (self.behind or self.busy or self.gone or self.ending is not None)
        if ready:
            self.at = number + 1
            if not frame.usage_only or self.reader.wants_usage:
                self.write(frame.data)
            if self.at == self.relay.fed and self.ending is None:
                return
        self.pump()

    def pump(self) -> None:
        """Writes what the reader has not got yet, until it says enough; then its ending, when that is due.

        A reader that calls back into the relay from its write finds its seat busy: the loop further up goes on.
        """
        if self.busy:
            return
        while not self.behind and not self.gone:
            frame = self._next()
            if frame is None:
                break
            if not frame.usage_only or self.reader.wants_usage:
                self.write(frame.data)
        if self.ending is not None and not self.rest and not self.gone:
            self.gone = True
            self.reader.end(*self.ending)

    def write(self, data: bytes) -> None:
        """Writes, after the beginning was told; notes whether the reader says enough."""
        self.busy = True
        try:
            if not self.begun:
                self.begun = True
                self.reader.begin(self.relay.head_for(self.cache))
                if self.gone:
                    return
            self.nudged = False
            if not self.reader.write(data) and not self.nudged:
                self.behind = True
        finally:
            self.busy = False

    def _next(self) -> Frame | None:
        if self.rest is not None:
            return self.rest.popleft() if self.rest else None
        frame = self.relay.frame(self.at)
        if frame is not None:
            self.at += 1
        return frame
