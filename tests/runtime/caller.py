"""A reader and a source that write down what they are told."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import Fault
from headrace.model import AnswerForm, CacheResult, Ending
from headrace.runtime.answer_head import AnswerHead
from headrace.runtime.relay import Relay, Seat
from headrace.wire.frames import Frame

HEAD = AnswerHead("gpu-1", "m", 1, 0.25, AnswerForm.STREAM, CacheResult.MISS)


class Caller:
    """A reader that writes down what it was told; `room` is how many writes it takes before it says enough."""

    def __init__(self, *, room: int | None = None, wants_usage: bool = True) -> None:
        self.wants_usage = wants_usage
        self.room = room
        self.heads: list[AnswerHead] = []
        self.got: list[bytes] = []
        self.endings: list[tuple[Ending, Fault | None]] = []
        self.on_write: Callable[[], None] | None = None
        self.resume: Callable[[], None] = lambda: None
        self.seat: Seat

    def begin(self, head: AnswerHead) -> None:
        assert not self.got, "begin comes before the first write"
        self.heads.append(head)

    def write(self, data: bytes) -> bool:
        assert self.heads, "begin comes before the first write"
        assert not self.endings, "nothing is written after the end"
        self.got.append(data)
        if self.on_write is not None:
            self.on_write()
        if self.room is None:
            return True
        self.room -= 1
        return self.room > 0

    def end(self, ending: Ending, fault: Fault | None) -> None:
        self.endings.append((ending, fault))

    def take(self, room: int | None) -> None:
        """Makes room and says so."""
        self.room = room
        self.resume()


class Tap:
    """A source that remembers whether it is paused."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def paused(self) -> bool:
        return self.calls[-1:] == ["pause"]


def frames(first: int, last: int) -> list[Frame]:
    """Frames that carry their own numbers."""
    return [Frame(b"%d" % number) for number in range(first, last)]


def opened(*, keep: bool = False, keep_bytes: int = 1 << 20, lag_frames: int = 256) -> tuple[Relay, Tap, list[str]]:
    """A relay that may be fed, its source, and a list that tells when it was sealed."""
    sealed: list[str] = []
    relay, tap = Relay("call-1", sealed.append, keep, keep_bytes, lag_frames), Tap()
    relay.source = tap
    relay.open(HEAD)
    return relay, tap, sealed


def join(relay: Relay, caller: Caller, cache: CacheResult = CacheResult.MISS) -> Caller:
    """Attaches a caller."""
    caller.seat = Seat(caller)
    relay.attach(caller.seat, cache)
    caller.resume = caller.seat.resume
    return caller
