"""What an engine finishes in a moment may be at it: quick ones get all they take, slow ones as little as before."""

from __future__ import annotations

from heapq import heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.gate import Gate
from headrace.core.place import Place
from headrace.core.settings import Settings
from headrace.core.turnover import SLACK
from headrace.model import Instance, ServiceClass

_CLASS = ServiceClass.NORMAL
MANY = 10_000


class Line:
    """A gate with endless demand before an engine that works on `slots` whole answers at a time, in order."""

    def __init__(self, slots: int = 1, tokens: int = 250) -> None:
        self.gate = Gate(Instance(id="a", max_concurrent=MANY, window_tokens=3072), Settings())
        self.tokens = tokens
        self.now = 100.0
        self.most = 0
        """The most that were there at the same time."""
        self._free = [self.now] * slots
        self._ends: list[tuple[float, int, Place]] = []
        self._number = 0

    def send(self, takes: float) -> Place:
        """One request, which takes so many seconds once its turn has come."""
        place = self.gate.enter(self.tokens, _CLASS, False, self.now)
        begins = max(self.now, heappop(self._free))
        heappush(self._free, begins + takes)
        self._number += 1
        heappush(self._ends, (begins + takes, self._number, place))
        self.most = max(self.most, self.gate.in_flight)
        return place

    def run(self, seconds: float, takes: float, well: bool = True, tick: float = 0.0) -> int:
        """Send whatever may go for so long, each answer taking `takes`; returns how many ended.

        `tick`: the clock shows only multiples of it.
        """
        ended, until, self.most = 0, self.now + seconds, 0
        self.fill(takes)
        while self._ends and self._ends[0][0] <= until:
            self.end(well, tick)
            ended += 1
            self.fill(takes)
        return ended

    def end(self, well: bool = True, tick: float = 0.0) -> None:
        """Go on until the next answer ends."""
        end, _, place = heappop(self._ends)
        self.now = max(self.now, end // tick * tick if tick else end)
        self.gate.leave(place, self.now, well=well)

    def fill(self, takes: float, most: int = 64) -> None:
        """As many callers as `most` wait all the time."""
        while self.gate.in_flight < most and not self.gate.shut(self.tokens, self.now):
            self.send(takes)


@pytest.mark.parametrize("tick", [0.0, 0.001, 0.0156])
def test_a_quick_engine_is_open_within_moments(tick: float) -> None:
    """Answers of 0.2 ms: after a fifth of a second all 64 callers are let through, by coarse clocks as by fine ones."""
    line = Line()

    line.run(0.2, 0.0002, tick=tick)

    assert line.most == 64
    assert not line.gate.shut(250, line.now)


def test_an_engine_that_does_much_together_is_given_more_and_more() -> None:
    """32 at a time in 15 ms each: it is seen at 3 first, and is full within a second."""
    line = Line(slots=32)

    line.run(1.0, 0.015)

    assert line.run(0.3, 0.015) >= 0.95 * 32 * 0.3 / 0.015


@given(st.floats(0.3, 30.0), st.integers(1, 16), st.integers(1, 400), st.lists(st.floats(0.0, 3.0), max_size=12))
def test_a_model_s_answers_are_never_taken_for_quick(
    takes: float, slots: int, tokens: int, pauses: list[float]
) -> None:
    """Answers of 0.3 s and more: whatever comes and pauses, no more than three are there and not begun."""
    line = Line(slots, tokens)

    for pause in pauses:
        line.run(pause, takes)
        assert line.gate.turnover.requests < 3.0
        assert line.gate.pending <= 3


def test_when_it_becomes_slow_no_more_go_in_than_come_out() -> None:
    """What is there when a quick engine begins to take a second each is at most what it had finished in a moment; then
    it gets as little as any."""
    line = Line()
    line.run(0.5, 0.0002)
    allowed = line.gate.turnover.requests
    assert allowed == pytest.approx(SLACK / 0.0002, rel=0.05)

    line.fill(1.0, most=MANY)
    assert line.gate.in_flight <= allowed + 1
    line.run(2.0, 1.0)

    assert line.gate.turnover.requests < 1.0
    assert line.gate.pending <= 3


def test_whoever_comes_while_nothing_ends_finds_it_closed() -> None:
    """It was quick and stands still with a hundred: a burst that comes a second later finds no more room than
    before any."""
    line = Line()
    line.run(0.5, 0.0002)
    while line.gate.in_flight < 100:
        line.send(60.0)

    line.now += 1.0
    line.fill(60.0, most=MANY)

    assert line.gate.in_flight <= 103
    assert line.gate.shut(250, line.now)


def test_quick_failures_open_nothing() -> None:
    """Errors in a tenth of a millisecond are no work done; those of an engine that was quick take it back."""
    broken, was_quick = Line(), Line()
    was_quick.run(0.5, 0.0002)

    broken.run(0.5, 0.0001, well=False)
    was_quick.run(0.5, 0.0001, well=False)

    assert broken.most <= 3
    assert was_quick.gate.turnover.requests == 0.0


def test_one_quick_answer_among_slow_ones_opens_nothing() -> None:
    """A thousand answers a second out of a cache, and one of five seconds out of the model: not quick."""
    line = Line(slots=2)
    line.send(5.0)

    line.run(4.0, 0.001)

    assert line.gate.turnover.requests == 0.0
    assert line.gate.pending <= 3


def test_idle_time_does_not_count_and_long_idleness_forgets() -> None:
    """One quick request a second shows as much as many in a row; after ten seconds without any it has to show anew."""
    line = Line()
    for _ in range(400):
        line.send(0.001)
        line.end()
        line.now += 0.9
    seldom = line.gate.turnover.requests
    line.now += 11.0

    line.send(0.001)

    assert seldom == pytest.approx(SLACK / 0.001, rel=0.05)
    assert line.gate.turnover.requests == 0.0


def test_prompts_are_let_in_by_what_was_read_of_prompts() -> None:
    """Many short ones in a moment do not let in as many long ones: a moment's tokens, or one long prompt, are there."""
    line = Line(tokens=10)
    line.run(0.5, 0.0002)
    moment = line.gate.turnover.tokens
    assert moment == pytest.approx(10 * SLACK / 0.0002, rel=0.05)

    line.tokens = 1000
    line.fill(0.1, most=MANY)

    assert line.gate.unstarted <= max(moment, 3072) + 640
