"""The relay: every reader gets the whole answer in order, whatever the readers and the source do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.errors import Fault, stream_incomplete
from headrace.model import AnswerForm, CacheResult, Ending
from headrace.runtime.relay import AnswerHead, Relay
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
    relay = Relay(keep=keep, keep_bytes=keep_bytes, lag_frames=lag_frames, on_sealed=lambda: sealed.append("sealed"))
    tap = Tap()
    relay.source = tap
    relay.open(HEAD)
    return relay, tap, sealed


def join(relay: Relay, caller: Caller, cache: CacheResult = CacheResult.MISS) -> Caller:
    """Attaches a caller."""
    caller.resume = relay.attach(caller, cache)
    return caller


def test_a_lone_reader_gets_each_frame_in_the_same_call() -> None:
    """With one reader that keeps up, a frame is written before `feed` returns, and nothing is held."""
    relay, _, _ = opened()
    caller = join(relay, Caller())
    for number, frame in enumerate(frames(0, 5), start=1):
        relay.feed(frame)
        assert len(caller.got) == number
    relay.end(caller, Ending.ANSWERED, None)
    assert caller.endings == [(Ending.ANSWERED, None)]
    assert caller.heads == [HEAD]


def test_a_late_joiner_gets_the_beginning_first() -> None:
    """Who joins late gets everything from the first frame on, and knows that it joined."""
    relay, _, _ = opened(keep=True)
    first = join(relay, Caller())
    for frame in frames(0, 3):
        relay.feed(frame)
    late = join(relay, Caller(), CacheResult.JOINED)
    relay.feed(Frame(b"3"))
    assert late.got == first.got == [b"0", b"1", b"2", b"3"]
    assert late.heads[0].cache is CacheResult.JOINED


def test_usage_goes_only_to_those_who_asked() -> None:
    """The usage chunk is skipped for a reader that did not ask for it."""
    relay, _, _ = opened(keep=True)
    with_usage = join(relay, Caller())
    without = join(relay, Caller(wants_usage=False))
    for frame in (Frame(b"a"), Frame(b"usage", usage_only=True), Frame(b"done")):
        relay.feed(frame)
    assert with_usage.got == [b"a", b"usage", b"done"]
    assert without.got == [b"a", b"done"]


def test_a_slow_lone_reader_pauses_the_source() -> None:
    """A lone reader that says enough pauses the source at once; it gets the rest and its end when it has room."""
    relay, tap, _ = opened()
    caller = join(relay, Caller(room=2))
    for frame in frames(0, 4):
        relay.feed(frame)
    assert tap.calls == ["pause"]
    relay.end(caller, Ending.ANSWERED, None)
    assert not caller.endings
    caller.take(None)
    assert caller.got == [b"0", b"1", b"2", b"3"]
    assert caller.endings == [(Ending.ANSWERED, None)]


def test_one_slow_reader_does_not_hold_up_the_others_until_the_bound() -> None:
    """The source goes on until the slow reader lags by the bound, and resumes when it is down to half."""
    relay, tap, _ = opened(lag_frames=8)
    fast, slow = join(relay, Caller()), join(relay, Caller(room=1))
    for frame in frames(0, 8):
        relay.feed(frame)
    assert not tap.paused()
    relay.feed(Frame(b"8"))
    assert tap.paused()
    slow.take(4)
    assert tap.paused()
    slow.take(2)
    assert not tap.paused()
    assert len(fast.got) == 9


def test_what_a_late_joiner_must_catch_up_with_is_no_lag() -> None:
    """A slow late joiner does not stop the stream of those who are already reading."""
    relay, tap, _ = opened(keep=True, lag_frames=4)
    join(relay, Caller())
    for frame in frames(0, 100):
        relay.feed(frame)
    late = join(relay, Caller(room=1), CacheResult.JOINED)
    assert not tap.paused()
    for frame in frames(100, 104):
        relay.feed(frame)
    assert tap.paused()
    late.take(None)
    assert not tap.paused()
    assert len(late.got) == 104


def test_a_long_answer_is_sealed_once_and_the_slow_still_get_their_rest() -> None:
    """Past the bound nothing is kept for joiners, but a reader that is behind loses nothing."""
    relay, tap, sealed = opened(keep=True, keep_bytes=10)
    join(relay, Caller())
    slow = join(relay, Caller(room=1))
    for frame in frames(0, 8):
        relay.feed(frame)
    assert len(relay.kept or ()) == 8
    for frame in frames(8, 30):
        relay.feed(frame)
    assert relay.kept is None
    assert sealed == ["sealed"]
    assert tap.paused(), "more bytes are held for the slow one than may be"
    with pytest.raises(RuntimeError):
        relay.attach(Caller(), CacheResult.JOINED)
    slow.take(None)
    assert slow.got == [b"%d" % number for number in range(30)]
    assert not tap.paused()


def test_a_reader_that_leaves_while_it_pauses_the_source_lets_it_go_on() -> None:
    """The others are not held up by a caller that has gone, and nothing more is told to it."""
    relay, tap, _ = opened(lag_frames=2)
    fast, slow = join(relay, Caller()), join(relay, Caller(room=1))
    for frame in frames(0, 4):
        relay.feed(frame)
    assert tap.paused()
    relay.detach(slow)
    relay.detach(slow)
    assert not tap.paused()
    relay.feed(Frame(b"4"))
    relay.end(slow, Ending.ANSWERED, None)
    assert slow.got == [b"0"]
    assert not slow.endings
    assert len(fast.got) == 5


def test_an_ended_reader_gets_no_later_frames_and_holds_up_nobody() -> None:
    """A reader whose own deadline passed gets what was made until then; the others go on at full speed."""
    relay, tap, _ = opened(lag_frames=2)
    fast, slow = join(relay, Caller()), join(relay, Caller(room=1))
    relay.feed(Frame(b"0"))
    relay.feed(Frame(b"1"))
    relay.end(slow, Ending.DEADLINE_EXPIRED, stream_incomplete())
    for frame in frames(2, 20):
        relay.feed(frame)
    assert not tap.paused()
    slow.take(None)
    assert slow.got == [b"0", b"1"]
    assert slow.endings == [(Ending.DEADLINE_EXPIRED, stream_incomplete())]
    assert len(fast.got) == 20


def test_a_refused_reader_is_told_without_a_beginning() -> None:
    """A request that failed before any byte gets its end and nothing else."""
    relay = Relay(keep=False, on_sealed=lambda: None)
    caller = join(relay, Caller())
    relay.end(caller, Ending.NO_INSTANCE, stream_incomplete())
    relay.end(caller, Ending.ANSWERED, None)
    assert not caller.heads
    assert caller.endings == [(Ending.NO_INSTANCE, stream_incomplete())]


def test_a_new_source_learns_that_the_readers_are_behind() -> None:
    """An attempt that takes over while the readers are full starts paused."""
    relay, _, _ = opened()
    join(relay, Caller(room=1))
    relay.feed(Frame(b"0"))
    second = Tap()
    relay.source = second
    assert second.paused()


def test_feeding_before_opening_is_a_fault() -> None:
    """Bytes before the head is known would reach callers without response headers."""
    relay = Relay(keep=False, on_sealed=lambda: None)
    join(relay, Caller())
    with pytest.raises(RuntimeError):
        relay.feed(Frame(b"0"))


@pytest.mark.parametrize("keep", [False, True])
def test_a_reader_may_leave_from_its_own_write(keep: bool) -> None:
    """A write that finds the caller gone detaches its reader; nothing more is written."""
    relay, tap, _ = opened(keep=keep)
    caller = join(relay, Caller(room=1))
    caller.on_write = lambda: relay.detach(caller)
    relay.feed(Frame(b"0"))
    relay.feed(Frame(b"1"))
    assert caller.got == [b"0"]
    assert not tap.paused()


@pytest.mark.parametrize("keep", [False, True])
def test_room_made_during_the_write_counts(keep: bool) -> None:
    """A buffer that drains before `write` has returned False does not leave the reader behind for ever."""
    relay, tap, _ = opened(keep=keep)
    caller = join(relay, Caller(room=1))
    caller.on_write = caller.resume
    for frame in frames(0, 3):
        relay.feed(frame)
    assert caller.got == [b"0", b"1", b"2"]
    assert not tap.paused()


@pytest.mark.parametrize("keep", [False, True])
def test_feeding_and_ending_from_a_write_keeps_the_order(keep: bool) -> None:
    """A source that is fed from inside a write, or ended there, is still delivered whole and in order."""
    relay, _, _ = opened(keep=keep)
    caller = join(relay, Caller())

    def more() -> None:
        caller.on_write = None
        relay.feed(Frame(b"1"))
        relay.end(caller, Ending.ANSWERED, None)

    caller.on_write = more
    relay.feed(Frame(b"0"))
    assert caller.got == [b"0", b"1"]
    assert caller.endings == [(Ending.ANSWERED, None)]


class Interleavings(RuleBasedStateMachine):
    """Any order of feed, attach, detach, room and end; the model is one list of frames."""

    @initialize(keep=st.booleans(), keep_bytes=st.integers(5, 60), lag_frames=st.integers(1, 6), usage=st.booleans())
    def start(self, keep: bool, keep_bytes: int, lag_frames: int, usage: bool) -> None:
        self.usage = usage
        self.lagging = False
        self.keep_bytes, self.lag_frames = keep_bytes, lag_frames
        self.relay, self.tap, self.sealed = opened(keep=keep, keep_bytes=keep_bytes, lag_frames=lag_frames)
        self.keep = keep
        self.fed: list[Frame] = []
        self.live: list[Caller] = []
        self.joined: dict[int, int] = {}
        self.ended: list[tuple[Caller, int]] = []
        self.left: list[tuple[Caller, int]] = []

    @rule(usage_only=st.booleans())
    def feed(self, usage_only: bool) -> None:
        frame = Frame(b"%d" % len(self.fed), usage_only)
        self.fed.append(frame)
        self.relay.feed(frame)

    @precondition(lambda self: not self.fed or self.relay.kept is not None)
    @rule(room=st.one_of(st.none(), st.integers(1, 4)), wants_usage=st.booleans())
    def attach(self, room: int | None, wants_usage: bool) -> None:
        caller = Caller(room=room, wants_usage=wants_usage or self.usage)
        self.joined[id(caller)] = len(self.fed)
        self.live.append(join(self.relay, caller))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), room=st.one_of(st.none(), st.integers(1, 9)))
    def make_room(self, data: st.DataObject, room: int | None) -> None:
        data.draw(st.sampled_from(self.live)).take(room)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        caller = data.draw(st.sampled_from(self.live))
        self.live.remove(caller)
        self.relay.detach(caller)
        self.left.append((caller, len(caller.got)))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        caller = data.draw(st.sampled_from(self.live))
        self.live.remove(caller)
        self.ended.append((caller, len(self.fed)))
        self.relay.end(caller, Ending.ANSWERED, None)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def detach_after_end(self, data: st.DataObject) -> None:
        caller, _ = data.draw(st.sampled_from(self.ended))
        told = len(caller.endings)
        self.relay.detach(caller)
        caller.take(None)
        assert len(caller.endings) == told
        self.ended = [entry for entry in self.ended if entry[0] is not caller]

    def due(self, caller: Caller, until: int) -> list[bytes]:
        return [frame.data for frame in self.fed[:until] if caller.wants_usage or not frame.usage_only]

    @invariant()
    def each_reader_has_a_prefix(self) -> None:
        for caller, until in [*((caller, len(self.fed)) for caller in self.live), *self.ended]:
            due = self.due(caller, until)
            assert caller.got == due[: len(caller.got)]
            assert len(caller.heads) == (1 if caller.got else 0)
            if caller.room is None or caller.room > 0:
                assert caller.got == due, "a reader with room has everything"
        for caller, count in self.left:
            assert len(caller.got) == count
            assert not caller.endings

    @invariant()
    def the_end_comes_once_and_last(self) -> None:
        for caller in self.live:
            assert not caller.endings
        for caller, until in self.ended:
            complete = caller.got == self.due(caller, until)
            assert len(caller.endings) == (1 if complete else 0)

    @invariant()
    def kept_is_everything_or_nothing(self) -> None:
        size = sum(len(frame.data) for frame in self.fed)
        whole = self.keep and size <= self.keep_bytes
        assert self.relay.kept == (tuple(self.fed) if whole else None)
        assert len(self.sealed) == (1 if self.keep and not whole else 0)

    @invariant()
    def the_source_waits_exactly_when_it_must(self) -> None:
        assert all(one != two for one, two in pairwise(self.tap.calls)), "told only what is new"
        behind = [caller for caller in self.live if caller.room is not None and caller.room <= 0]
        if not behind or len(behind) == len(self.live):
            assert self.tap.paused() == bool(behind)
        if self.usage:  # then what a reader has got tells where it stands
            self.lagging = bool(behind) and self.too_far(behind, 2 if self.lagging else 1)
            assert self.tap.paused() == (self.lagging or (bool(behind) and len(behind) == len(self.live)))

    def too_far(self, behind: list[Caller], share: int) -> bool:
        lag = max(len(self.fed) - max(len(caller.got), self.joined[id(caller)]) for caller in behind)
        waiting = self.fed[min(len(caller.got) for caller in self.live) :]
        held = 0 if self.relay.kept is not None else sum(len(frame.data) for frame in waiting)
        return lag * share >= self.lag_frames or held * share > self.keep_bytes

    def teardown(self) -> None:
        for caller in self.live:
            caller.take(None)
            assert caller.got == self.due(caller, len(self.fed))
        for caller, until in self.ended:
            caller.take(None)
            assert caller.got == self.due(caller, until)
            assert len(caller.endings) == 1


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
