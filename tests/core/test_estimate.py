"""The promises of `headrace.core.estimate`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.estimate import FIRST_GUESS, FLOOR, OutputEstimator
from headrace.model import Flow

ALICE, BOB = Flow(user="alice"), Flow(user="bob")


def test_an_unknown_model_is_guessed_at_the_default() -> None:
    """Before anything was seen the guess is 256, or the caller's cap."""
    estimator = OutputEstimator()
    assert estimator.expect(ALICE, "m", "chat", None) == FIRST_GUESS == 256
    assert estimator.expect(ALICE, "m", "chat", 40) == 40


def test_the_own_past_counts_before_the_past_of_others() -> None:
    """A user is guessed by what he does; a new user by what users of the model do."""
    estimator = OutputEstimator()
    for _ in range(30):
        estimator.observe(ALICE, "m", "chat", 1000)
        estimator.observe(BOB, "m", "chat", 20)
    assert estimator.expect(ALICE, "m", "chat", None) == 1000
    assert estimator.expect(BOB, "m", "chat", None) == 20
    assert 20 < estimator.expect(Flow(user="carol"), "m", "chat", None) < 1000
    assert estimator.expect(ALICE, "m", "completions", None) == FIRST_GUESS


def test_users_of_the_same_name_in_two_tenants_are_two() -> None:
    """One tenant's habits say nothing about another's."""
    estimator = OutputEstimator()
    estimator.observe(Flow(tenant="a", user="x"), "m", "chat", 900)
    estimator.observe(Flow(tenant="b", user="x"), "m", "chat", 30)
    assert estimator.expect(Flow(tenant="a", user="x"), "m", "chat", None) == 900
    assert estimator.expect(Flow(tenant="b", user="x"), "m", "chat", None) == 30


def test_the_floor_yields_only_to_the_callers_cap() -> None:
    """Nobody queues for free, and nobody is charged beyond what he allowed."""
    estimator = OutputEstimator()
    estimator.observe(ALICE, "m", "chat", 0)
    assert estimator.expect(ALICE, "m", "chat", None) == FLOOR
    assert estimator.expect(ALICE, "m", "chat", 3) == 3
    assert estimator.expect(ALICE, "m", "chat", 0) == 1


def test_session_and_class_do_not_split_the_history() -> None:
    """A user's sessions teach the same estimate."""
    estimator = OutputEstimator()
    estimator.observe(Flow(user="alice", session="one"), "m", "chat", 77)
    assert estimator.expect(Flow(user="alice", session="two"), "m", "chat", None) == 77


def test_what_is_forgotten_falls_back_to_the_model() -> None:
    """Beyond its capacity the least recently used user is guessed from all users again."""
    estimator = OutputEstimator(capacity=2)
    estimator.observe(ALICE, "m", "chat", 1000)
    for number in range(50):
        estimator.observe(Flow(user=f"u{number}"), "m", "chat", 20)
    assert estimator.expect(ALICE, "m", "chat", None) < 100


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=50), st.none() | st.integers(1, 10_000))
def test_the_guess_stays_within_what_was_seen(lengths: list[int], cap: int | None) -> None:
    """A mean lies between the least and the most seen, the floor and the cap aside."""
    estimator = OutputEstimator()
    for length in lengths:
        estimator.observe(ALICE, "m", "chat", length)
    guess = estimator.expect(ALICE, "m", "chat", cap)
    assert guess <= max(FLOOR, *lengths)
    assert guess >= min(max(FLOOR, min(lengths)), FLOOR if cap is None else cap, max(lengths) or FLOOR)
    assert cap is None or guess <= cap


@given(st.integers(FLOOR, 5_000), st.integers(FLOOR, 5_000))
def test_a_change_of_habit_is_learned_within_twenty_answers(before: int, after: int) -> None:
    """After 20 answers of a new length less than 2 % of the old one is left."""
    estimator = OutputEstimator()
    for _ in range(20):
        estimator.observe(ALICE, "m", "chat", before)
    for _ in range(20):
        estimator.observe(ALICE, "m", "chat", after)
    assert abs(estimator.expect(ALICE, "m", "chat", None) - after) <= abs(before - after) * 0.02 + 1
