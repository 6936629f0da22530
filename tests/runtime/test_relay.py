"""The relay: every reader gets the whole answer in order, whatever the readers and the source do."""

from __future__ import annotations

import pytest

from headrace.errors import stream_incomplete
from headrace.model import CacheResult, Ending
from headrace.runtime.relay import Relay, Seat
from headrace.wire.frames import Frame
from tests.runtime.caller import HEAD, Caller, Tap, frames, join, opened


def test_a_lone_reader_gets_each_frame_in_the_same_call() -> None:
    """With one reader that keeps up, a frame is written before `feed` returns, and nothing is held."""
    relay, _, _ = opened()
    caller = join(relay, Caller())
    for number, frame in enumerate(frames(0, 5), start=1):
        relay.feed(frame)
        assert len(caller.got) == number
    caller.seat.end(Ending.ANSWERED, None)
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
    caller.seat.end(Ending.ANSWERED, None)
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
    assert sealed == ["call-1"]
    assert tap.paused(), "more bytes are held for the slow one than may be"
    with pytest.raises(RuntimeError):
        relay.attach(Seat(Caller()), CacheResult.JOINED)
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
    slow.seat.leave()
    slow.seat.leave()
    assert not tap.paused()
    relay.feed(Frame(b"4"))
    slow.seat.end(Ending.ANSWERED, None)
    assert slow.got == [b"0"]
    assert not slow.endings
    assert len(fast.got) == 5


def test_an_ended_reader_gets_no_later_frames_and_holds_up_nobody() -> None:
    """A reader whose own deadline passed gets what was made until then; the others go on at full speed."""
    relay, tap, _ = opened(lag_frames=2)
    fast, slow = join(relay, Caller()), join(relay, Caller(room=1))
    relay.feed(Frame(b"0"))
    relay.feed(Frame(b"1"))
    slow.seat.end(Ending.DEADLINE_EXPIRED, stream_incomplete())
    for frame in frames(2, 20):
        relay.feed(frame)
    assert not tap.paused()
    slow.take(None)
    assert slow.got == [b"0", b"1"]
    assert slow.endings == [(Ending.DEADLINE_EXPIRED, stream_incomplete())]
    assert len(fast.got) == 20


def test_a_refused_reader_is_told_without_a_beginning() -> None:
    """A request that failed before any byte gets its end and nothing else."""
    relay = Relay("call-1", print, keep=False)
    caller = join(relay, Caller())
    caller.seat.end(Ending.NO_INSTANCE, stream_incomplete())
    caller.seat.end(Ending.ANSWERED, None)
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
    relay = Relay("call-1", print, keep=False)
    join(relay, Caller())
    with pytest.raises(RuntimeError):
        relay.feed(Frame(b"0"))


@pytest.mark.parametrize("keep", [False, True])
def test_a_reader_may_leave_from_its_own_write(keep: bool) -> None:
    """A write that finds the caller gone detaches its reader; nothing more is written."""
    relay, tap, _ = opened(keep=keep)
    caller = join(relay, Caller(room=1))
    caller.on_write = caller.seat.leave
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
        caller.seat.end(Ending.ANSWERED, None)

    caller.on_write = more
    relay.feed(Frame(b"0"))
    assert caller.got == [b"0", b"1"]
    assert caller.endings == [(Ending.ANSWERED, None)]
