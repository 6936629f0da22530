"""Any interleaving of what can happen to a relay keeps its promises."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.model import Ending
from headrace.wire.frames import Frame
from tests.runtime.caller import Caller, join, opened


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
        caller.seat.leave()
        self.left.append((caller, len(caller.got)))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        caller = data.draw(st.sampled_from(self.live))
        self.live.remove(caller)
        self.ended.append((caller, len(self.fed)))
        caller.seat.end(Ending.ANSWERED, None)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def detach_after_end(self, data: st.DataObject) -> None:
        caller, _ = data.draw(st.sampled_from(self.ended))
        told = len(caller.endings)
        caller.seat.leave()
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
