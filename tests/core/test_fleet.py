"""The promises of `headrace.core.fleet`: what is learned of an instance, and the pools of models."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.core.settings import BreakerSettings, FairnessSettings, RecoverySettings, Settings
from headrace.model import AnswerForm, BreakerState, Cause, Outcome, Probed, ServedModel, Usage
from tests.core.calls import attempt, fleet, pool
from tests.core.script import engine, request

_SETTINGS = Settings(breaker=BreakerSettings(threshold=3), recovery=RecoverySettings(cooldown=5.0, cooldown_cap=60.0))


def test_speed_is_learned_from_answers() -> None:
    """100 tokens in 2 s: 50 a second at first, then a mean that leans to the newest by three tenths."""
    state = pool(engine("a")).members[0]
    assert state.speed == 0.0
    attempt(state, [Cause.OK], _SETTINGS)
    assert state.speed == 50.0
    place = state.acquire(request("x"), 1.0, False, 10.0)
    state.release(place, Outcome(Cause.OK), _SETTINGS.recovery, 11.0)
    assert state.speed == 50.0


@pytest.mark.parametrize(
    ("cause", "after"),
    [
        (Cause.TIMEOUT, 0.85),
        (Cause.CONNECT, 0.85),
        (Cause.BROKEN_STREAM, 0.85),
        (Cause.SERVER_ERROR, 0.7),
        (Cause.PROTOCOL, 0.7),
        (Cause.RATE_LIMITED, 0.79),
        (Cause.REJECTED, 1.0),
        (Cause.UPSTREAM_AUTH, 1.0),
        (Cause.ABORTED, 1.0),
    ],
)
def test_reliability_falls_by_the_kind_of_failure(cause: Cause, after: float) -> None:
    """Three tenths of the way toward what the failure weighs; callers' mistakes and leaving weigh nothing."""
    state = pool(engine("a")).members[0]
    attempt(state, [cause], _SETTINGS)
    assert state.reliability == pytest.approx(after)


@pytest.mark.parametrize(
    ("form", "first", "took", "after"),
    [
        (AnswerForm.STREAM, 1.0, 400.0, 1.0),
        (AnswerForm.STREAM, 1.0, 481.0, 0.91),
        (AnswerForm.STREAM, 97.0, 100.0, 0.91),
        (AnswerForm.WHOLE, 400.0, 400.0, 1.0),
        (AnswerForm.WHOLE, 481.0, 481.0, 0.91),
    ],
)
def test_a_success_that_nearly_timed_out_counts_a_little_against_it(
    form: AnswerForm, first: float, took: float, after: float
) -> None:
    """More than 80 % of what an attempt, or the first content of a stream, may take."""
    state = fleet(engine("a")).states["a"]
    place = state.acquire(request("x", form=form), 1.0, form is AnswerForm.STREAM, 0.0)
    state.started(place, first)
    state.release(place, Outcome(Cause.OK, Usage(1, 10)), Settings().recovery, took)
    assert state.reliability == pytest.approx(after)


def test_a_success_ends_the_cooldown_of_a_failure_but_not_what_the_engine_asked_for() -> None:
    """An own guess is withdrawn by evidence; an engine's request is kept."""
    state = pool(engine("a")).members[0]
    running = [state.acquire(request("x"), 1.0, False, 0.0) for _ in range(4)]
    state.release(running[0], Outcome(Cause.SERVER_ERROR), _SETTINGS.recovery, 1.0)
    assert state.shut(2.0) == "cooldown"
    state.release(running[1], Outcome(Cause.OK), _SETTINGS.recovery, 2.0)
    assert not state.shut(2.0)
    state.release(running[2], Outcome(Cause.RATE_LIMITED, retry_after=20.0), _SETTINGS.recovery, 3.0)
    state.release(running[3], Outcome(Cause.OK), _SETTINGS.recovery, 4.0)
    assert state.shut(22.9) == "cooldown"
    assert not state.shut(23.0)


def test_a_longer_request_to_stay_away_wins_and_a_failure_does_not_shorten_it() -> None:
    """30 s asked for, then a failure with its 5 s: 30 s hold."""
    state = pool(engine("a")).members[0]
    running = [state.acquire(request("x"), 1.0, False, 0.0) for _ in range(2)]
    state.release(running[0], Outcome(Cause.RATE_LIMITED, retry_after=30.0), _SETTINGS.recovery, 0.0)
    state.release(running[1], Outcome(Cause.SERVER_ERROR), _SETTINGS.recovery, 1.0)
    assert state.returns_in(1.0) == 29.0


def test_releasing_twice_changes_nothing() -> None:
    """The second has no effect on counts, breaker or what was learned."""
    state = pool(engine("a")).members[0]
    place = state.acquire(request("x"), 7.0, False, 0.0)
    other = state.acquire(request("y"), 5.0, False, 0.0)
    for _ in range(5):
        state.release(place, Outcome(Cause.SERVER_ERROR), _SETTINGS.recovery, 1.0)
    assert (state.gate.in_flight, state.load) == (1, 5.0)
    assert state.breaker.state(1.0) is BreakerState.CLOSED
    state.release(other, Outcome(Cause.OK), _SETTINGS.recovery, 2.0)
    assert (state.gate.in_flight, state.load) == (0, 0.0)


def test_health_is_lost_by_three_and_won_by_one() -> None:
    """A busy one is not counted, a definite answer counts at once, and only a change is reported as such."""
    state = pool(engine("a")).members[0]
    answers = [state.probed(Probed("a", healthy=False, busy=busy), 0.0) for busy in (False, True, False, True, False)]
    assert answers == [False, False, False, False, True]
    assert state.shut(0.0) == "down"
    assert state.returns_in(0.0) is None
    assert state.probed(Probed("a", healthy=True), 0.0)
    assert not state.shut(0.0)
    assert state.probed(Probed("a", healthy=False, definite=True), 0.0)


def test_models_of_the_same_instances_share_a_pool() -> None:
    """Their users compete for the same machines; other sets are other pools; unknown names have none."""
    all_of = fleet(engine("a", 1, "m1", "m2"), engine("b", 1, "m1", "m2", "m3"))
    assert all_of.pool("m1") is all_of.pool("m2")
    assert all_of.pool("m3") is not all_of.pool("m1")
    assert all_of.pool("m4") is None
    assert [state.instance.id for state in all_of.pool("m3").members] == ["b"]  # type: ignore[union-attr]


def test_names_made_up_by_callers_do_not_pile_up() -> None:
    """Any name matches a star; the memory of names is bounded and they share one pool."""
    all_of = fleet(engine("a"))
    pools = {id(all_of.pool(f"made-up-{number}")) for number in range(20_000)}
    assert len(pools) == 1
    assert len(all_of._names) <= 4096


def test_an_idle_pool_is_dropped_by_a_reload_and_a_used_one_kept() -> None:
    """What somebody waits in stays; the rest is made anew when it is needed."""
    all_of = fleet(engine("a", 1, "m1"), engine("b", 1, "m2"))
    used, idle = all_of.pool("m1"), all_of.pool("m2")
    assert used is not None
    used.tree.open(("normal",), 1.0)
    all_of.configure([engine("b", 1, "m2"), engine("a", 2, "m1")])
    assert all_of.pool("m1") is used
    assert used.members[0].gate.limit == 2
    assert all_of.pool("m2") is not idle


def test_the_weight_of_a_user_may_be_told_with_or_without_the_tenant() -> None:
    """The longer name wins; tenants and classes have their own."""
    fairness = FairnessSettings(
        tenant_weights={"acme": 2.0}, user_weights={"ann": 3.0, "acme/ann": 5.0}, user_in_flight=4
    )
    tree = pool(engine("a"), settings=Settings(fairness=fairness)).tree
    for tenant in ("acme", "else"):
        tree.push(None, ("normal", tenant, "ann", ""))  # type: ignore[arg-type]
    normal = tree.root.children["normal"]
    acme, other = normal.children["acme"], normal.children["else"]
    assert (normal.weight, acme.weight, other.weight) == (3.0, 2.0, 1.0)
    assert (acme.children["ann"].weight, other.children["ann"].weight) == (5.0, 3.0)
    assert (acme.cap, acme.children["ann"].cap) == (None, 4)


def test_the_drain_rate_is_measured() -> None:
    """A dispatch every two seconds while others wait: ten ahead take about twenty seconds, never under one."""
    one = pool(engine("a"))
    one.tree.push(None, ("normal",))  # type: ignore[arg-type]
    for number in range(100):
        one.dispatched(1.0, number * 2.0)
    assert one.drains_in(10) == pytest.approx(20.0, rel=0.05)
    assert one.drains_in(0) == 1.0
    assert one.drains_in(10_000) == 60.0


def test_what_can_be_seen_says_why_nothing_is_sent() -> None:
    """The view names the reason an operator would look for."""
    state = pool(engine("a", 1)).members[0]
    assert state.view(0.0).closed_because == ""
    place = state.acquire(request("x"), 1.0, False, 0.0)
    assert state.view(0.0).closed_because == "in_flight"
    state.release(place, Outcome(Cause.SERVER_ERROR), _SETTINGS.recovery, 1.0)
    view = state.view(2.0)
    assert (view.closed_because, view.cooldown, view.in_flight) == ("cooldown", 4.0, 0)
    assert view.models == (ServedModel(name="*").name,)


@given(
    st.floats(0.0, 1e6), st.floats(0.0, 4.8), st.sampled_from([Cause.CONNECT, Cause.RATE_LIMITED]), st.integers(1, 4)
)
@example(0.88, 0.57, Cause.CONNECT, 1)
@example(0.55, 0.82, Cause.CONNECT, 1)
def test_it_may_be_asked_again_at_the_very_moment_it_names(
    begun: float, later: float, cause: Cause, failures: int
) -> None:
    """Whether it cools down or its breaker is open, and whatever floats make of sums and differences: whoever is woken
    then finds it back, and never a trifle too early, with nobody to wake him again."""
    state = pool(engine("a"), settings=_SETTINGS).members[0]
    attempt(state, [cause] * failures, _SETTINGS, begun)
    asked = begun + 2.0 + later
    opens = state.opens_at(asked)
    assert opens is not None
    assert state.shut(asked)
    assert not state.shut(opens)
