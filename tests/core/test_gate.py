"""The promises of `headrace.core.gate`: places in flight and the un-started window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.gate import Gate
from headrace.core.place import Place
from headrace.core.settings import Settings
from headrace.model import EngineReport, Instance, ServiceClass, Usage

_CLASS = ServiceClass.NORMAL


def gate(limit: int = 10, window: int | None = 1000) -> Gate:
    """A gate that knows nothing yet."""
    return Gate(Instance(id="a", max_concurrent=limit, window_tokens=window), Settings())


def enter(at: Gate, tokens: int, now: float = 0.0, streamed: bool = True) -> Place:
    """Go in after asking."""
    assert not at.shut(tokens, now)
    return at.enter(tokens, _CLASS, streamed, now)


def test_no_more_than_the_limit_is_in_flight() -> None:
    """Full is full; a place that is given back is a place."""
    one = gate(limit=2, window=None)
    first = enter(one, 5)
    enter(one, 5)
    assert one.shut(5, 0.0) == "in_flight"
    one.leave(first, 1.0)
    assert not one.shut(5, 1.0)


def test_the_window_bounds_what_was_sent_and_not_begun() -> None:
    """A burst of prompts fills it; a first token makes room at once."""
    one = gate()
    first = enter(one, 600)
    assert one.shut(600, 0.0) == "window"
    assert not one.shut(400, 0.0)
    one.started(first, 0.1)
    assert not one.shut(600, 0.1)
    assert one.unstarted == 0


def test_a_prompt_longer_than_the_window_goes_alone() -> None:
    """It fits an empty window, and nothing fits beside it."""
    one = gate()
    big = enter(one, 50_000)
    assert one.shut(1, 0.0) == "window"
    one.started(big, 9.0)
    assert not one.shut(1, 9.0)


def test_short_prompts_wait_for_the_first_signs_of_those_before() -> None:
    """A window of a thousand tokens would take a hundred and more of them: two go, and more as these begin; one more
    may if it comes from somebody who has next to nothing there."""
    one = gate(limit=200)
    first = [enter(one, 8) for _ in range(2)]
    assert one.shut(8, 0.0) == "pending"
    assert not one.shut(8, 0.0, guest=True)
    first.append(one.enter(8, _CLASS, True, 0.0))
    assert one.shut(8, 0.0, guest=True) == "pending"
    for place in first:
        one.started(place, 0.02)
    assert not one.shut(8, 0.02)


def test_an_engine_that_ran_many_is_sent_as_many_again() -> None:
    """It showed twelve at a time: when they have ended, twelve more and what may wait go at once, and no more."""
    one, now = gate(limit=200), 0.0
    for _ in range(6):
        now += 0.02
        for place in [enter(one, 8, now - 0.02) for _ in range(2)]:
            one.started(place, now)
    assert one.breadth.most == 12
    inside = [enter(one, 8, now) for _ in range(2)]
    assert one.in_flight == 14
    assert one.shut(8, now) == "pending"
    one.leave(inside[0], now)
    assert not one.shut(8, now)


def test_without_a_window_nothing_is_held_back_for_not_having_begun() -> None:
    """A cloud provider has room for whatever its limit in flight allows."""
    one = gate(limit=50, window=None)
    for _ in range(50):
        enter(one, 8)
    assert one.shut(8, 0.0) == "in_flight"


def test_whole_answers_count_as_waiting_between_two_polls_until_they_end() -> None:
    """Nothing shows when a whole answer begins: what was sent since the poll and has not ended may wait."""
    one = gate(limit=200)
    one.reported(EngineReport(running=0, waiting=0), 0.0)
    sent = [enter(one, 8, 0.0, streamed=False) for _ in range(2)]
    assert one.shut(8, 0.2) == "engine_queue"
    one.leave(sent[0], 0.3)
    assert not one.shut(8, 0.3)
    one.reported(EngineReport(running=1, waiting=0), 0.4)
    assert not one.shut(8, 0.4)


def test_a_whole_answer_gives_its_reservation_back_by_time() -> None:
    """It shows no first token: 600 tokens at 5,000 a second are taken as read after 0.12 s."""
    one = gate()
    enter(one, 600, streamed=False)
    assert one.shut(600, 0.0) == "window"
    assert one.opens_at(0.0) == pytest.approx(0.12)
    assert one.shut(600, 0.119) == "window"
    assert not one.shut(600, 0.121)
    assert one.opens_at(0.121) is None
    assert one.in_flight == 1


def test_the_speed_of_prefill_is_learned_from_streams_that_were_alone() -> None:
    """1,000 tokens in 2 s each are slower than the first guess; a tiny prompt teaches nothing."""
    one, guess = gate(window=100_000), gate().prefill_seconds
    for number in range(20):
        now = number * 10.0
        lone = enter(one, 1000, now)
        one.started(lone, now + 2.0)
        one.leave(lone, now + 3.0)
    learned = one.prefill_seconds
    assert guess < learned <= 0.002 * 1.01
    tiny = enter(one, 3, 500.0)
    one.started(tiny, 510.0)
    assert one.prefill_seconds == learned


def test_short_answers_and_tails_have_a_pace() -> None:
    """Eight tokens, seven of them after the first within 0.7 s; and what comes after the last report: both count."""
    short, tail = gate(), gate()
    for one, told in ((short, 0), (tail, 32)):
        place = enter(one, 100)
        one.started(place, 1.0)
        if told:
            one.progressed(place, told, 2.0)
        one.leave(place, 2.7 if told else 1.7, Usage(prompt=100, completion=told + 7 if told else 8))

    assert short.pace.tpot == pytest.approx(0.1)
    assert tail.pace.tpot == pytest.approx((1.0 / 32 + 0.1) / 2)


@pytest.mark.parametrize(
    "usage", [None, Usage(completion=500), Usage(completion=20, reasoning=12), Usage(completion=1)]
)
def test_tokens_that_nobody_saw_come_have_no_pace(usage: Usage | None) -> None:
    """An answer that broke off; more than fits between two reports; hidden thoughts; one token: nothing is learned."""
    one = gate()
    place = enter(one, 100)
    one.started(place, 1.0)

    one.leave(place, 1.7, usage)

    assert one.pace.tpot is None


def test_a_slow_reader_is_sent_more_while_it_reads() -> None:
    """Metrics are known, tokens take 0.4 s because prompts are read between them: the gate stays open. The same pace
    without a prompt shuts it."""
    shut = []
    for tokens in (2000, 1):
        one = gate(window=100_000)
        streams = [enter(one, 1), enter(one, 1)]
        for place in streams:
            one.started(place, 0.0)
        for window in range(1, 30):
            now = 0.5 * window
            one.reported(EngineReport(running=2, waiting=0), now)
            prompt = one.enter(tokens, _CLASS, True, now - 0.4)
            one.started(prompt, now)
            one.leave(prompt, now)
            for place in streams:
                one.progressed(place, 1, now - 0.05)
        shut.append(one.shut(1, 14.5))

    assert shut == ["", "pace"]


def test_a_new_instance_without_a_fixed_limit_opens_when_it_was_seen_calm() -> None:
    """Two streams first; when these have made some tokens, they tell its pace, and eight may go."""
    one = Gate(Instance(id="a", max_concurrent=64, adaptive=True, window_tokens=100_000), Settings())
    lone = enter(one, 10, 100.0)
    guest = one.enter(10, _CLASS, True, 100.0)
    assert one.shut(10, 100.0, guest=True) == "in_flight"
    assert one.opens_at(100.0) == pytest.approx(110.0)
    for place in (lone, guest):
        one.started(place, 100.1)
    one.progressed(lone, 4, 100.2)
    assert one.limit == 1
    one.progressed(lone, 12, 100.5)

    assert one.pace.base == pytest.approx(0.025)
    assert one.limit == 8


def test_giving_back_twice_changes_nothing() -> None:
    """The slot is gone with the first."""
    one = gate()
    first, second = enter(one, 100), enter(one, 100)
    one.leave(first, 1.0)
    one.leave(first, 1.0)
    one.started(first, 1.0)
    assert (one.in_flight, one.unstarted) == (1, 100)
    one.leave(second, 1.0)
    assert (one.in_flight, one.unstarted) == (0, 0)


def test_batch_counts_among_its_own_too() -> None:
    """Its own count goes up and down with it."""
    one = gate()
    place = one.enter(10, ServiceClass.BATCH, True, 0.0)
    assert one.batch_in_flight == 1
    one.leave(place, 1.0)
    assert one.batch_in_flight == 0


@given(st.lists(st.tuples(st.sampled_from("esl"), st.integers(1, 700), st.booleans(), st.floats(0, 0.2)), max_size=80))
def test_counts_follow_any_sequence(moves: list[tuple[str, int, bool, float]]) -> None:
    """Whatever starts, lapses and leaves in any order: never below zero, never above the bounds, zero in the end."""
    one, inside, now = gate(limit=4), list[Place](), 0.0
    for kind, tokens, streamed, later in moves:
        now += later
        if kind == "e" and not one.shut(tokens, now):
            alone = one.unstarted == 0
            inside.append(one.enter(tokens, _CLASS, streamed, now))
            assert alone or one.unstarted <= 1000
        elif kind == "s" and inside:
            one.started(inside[tokens % len(inside)], now)
        elif kind == "l" and inside:
            one.leave(inside.pop(tokens % len(inside)), now)
        assert one.in_flight == len(inside) <= 4
        assert one.unstarted == sum(place.tokens for place in inside if place.unstarted)
    for place in inside:
        one.leave(place, now)
    assert (one.in_flight, one.unstarted, one.pending, one.unseen, one.breadth.running) == (0, 0, 0, 0, 0)
