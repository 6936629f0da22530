"""What an operator does to one instance: drain it, let it have work again, open and close its breaker."""

from __future__ import annotations

from headrace.core.settings import BreakerSettings, Fallback, ModelSettings, Settings
from headrace.model import BreakerState, Cause, Drained, InstanceView, Learned, Mended, Recalled, Reconfigured, Tripped
from tests.core.inventory import nothing_held
from tests.core.script import Stage, arrive, begun, done, engine, failed, looked, play


def view(stage: Stage, name: str) -> InstanceView:
    """One instance as it can be seen now."""
    return next(one for one in stage.scheduler.snapshot(stage.now).instances if one.id == name)


# ---------------------------------------------------------------------------------------------------- draining


def test_a_drained_instance_ends_what_runs_and_gets_nothing_new() -> None:
    """Its running request is answered; what waits goes to the other one; undrained it is used again."""
    stage = Stage(engine("a"), engine("b"))
    play(
        stage,
        [
            (0.0, arrive("r1"), ["join r1", "dispatch r1 #1 a"]),
            (0.0, Drained("a"), []),
            (0.0, arrive("r2"), ["join r2", "dispatch r2 #1 b"]),
            (0.0, arrive("r3"), ["join r3"]),
            (1.0, done("r1"), ["settle r1 answered"]),
            (2.0, done("r2"), ["settle r2 answered", "dispatch r3 #1 b"]),
            (3.0, arrive("r4"), ["join r4"]),
            (4.0, Drained("a", draining=False), ["dispatch r4 #1 a"]),
            (5.0, done("r3"), ["settle r3 answered"]),
            (5.0, done("r4"), ["settle r4 answered"]),
        ],
    )
    assert nothing_held(stage.scheduler)


def test_when_the_last_instance_is_drained_who_waits_is_told_at_once() -> None:
    """As who comes later is told at the door; the running one is answered, one that fails then is not retried."""
    stage = Stage(engine("a", 2))
    stage.do(0.0, arrive("r1"))
    stage.do(0.0, arrive("r2"))
    stage.do(0.0, arrive("r3"))
    told = ["settle r3 no_instance", "bury r3 no_instance"]
    play(
        stage,
        [
            (1.0, Drained("a"), told),
            (1.0, arrive("r4"), ["settle r4 no_instance", "bury r4 no_instance"]),
            (2.0, done("r1"), ["settle r1 answered"]),
            (2.0, failed("r2"), ["settle r2 inference_failure", "bury r2 inference_failure"]),
        ],
    )
    assert nothing_held(stage.scheduler)


def test_what_waits_for_a_retry_or_the_cache_is_told_as_well() -> None:
    """The retry at once, the other when the cache has missed; a hit is still answered."""
    stage = Stage(engine("a", 5))
    stage.do(0.0, arrive("retries"))
    stage.do(0.0, failed("retries"))
    stage.do(0.0, arrive("misses", key="k", look_up=True))
    stage.do(0.0, arrive("hits", key="l", look_up=True))
    told = ["settle retries no_instance", "bury retries no_instance"]
    assert stage.do(1.0, Drained("a")) == told
    assert stage.do(1.0, looked("misses", hit=False)) == ["settle misses no_instance", "bury misses no_instance"]
    assert stage.do(1.0, looked("hits", hit=True)) == ["settle hits answered"]
    assert nothing_held(stage.scheduler)


def test_another_model_takes_over_for_a_drained_one() -> None:
    """Who waits for the drained instance's model goes where the fallback is served."""
    models = ModelSettings(fallbacks={"m": Fallback(models=("other",))})
    stage = Stage(engine("a", 1, "m"), engine("b", 1, "other"), settings=Settings(models=models))
    stage.do(0.0, arrive("r1"))
    stage.do(0.0, arrive("r2"))
    assert stage.do(1.0, Drained("a")) == ["dispatch r2 #1 b"]


def test_an_instance_stays_drained_when_it_is_changed() -> None:
    """New limits or a new address do not let it have work; removed and added again it is a new one."""
    stage = Stage(engine("a"), engine("b"))
    stage.do(0.0, Drained("a"))
    stage.do(1.0, Reconfigured((engine("a", 4), engine("b"))))
    assert view(stage, "a").draining
    stage.do(2.0, Reconfigured((engine("a", 4, address="http://new"), engine("b"))))
    assert view(stage, "a").draining
    stage.do(3.0, Reconfigured((engine("b"),)))
    stage.do(4.0, Reconfigured((engine("a"), engine("b"))))
    assert not view(stage, "a").draining


def test_facts_about_instances_that_are_gone_change_nothing() -> None:
    """The operator's word came late."""
    stage = Stage(engine("a"))
    for fact in (Drained("x"), Tripped("x"), Mended("x"), Recalled((Learned(instance="x", speed=9.0),))):
        assert stage.do(0.0, fact) == []
    assert stage.do(1.0, arrive("r")) == ["join r", "dispatch r #1 a"]


# ------------------------------------------------------------------------------------- breakers by hand


def test_a_tripped_breaker_lets_one_probe_through_after_its_time() -> None:
    """As if the threshold had been reached: new requests go elsewhere, after 60 s one of them probes."""
    stage = Stage(engine("a", 2), engine("b", 2))
    stage.do(0.0, Tripped("a"))
    assert view(stage, "a").breaker is BreakerState.OPEN
    assert stage.do(1.0, arrive("r1")) == ["join r1", "dispatch r1 #1 b"]
    stage.do(2.0, done("r1"))
    assert stage.do(60.0, arrive("r2")) == ["join r2", "dispatch r2 #1 a"]
    assert stage.do(60.0, arrive("r3")) == ["join r3", "dispatch r3 #1 b"]
    stage.do(61.0, done("r2"))
    changes = view(stage, "a").breaker_changes
    assert changes == {BreakerState.OPEN: 1, BreakerState.HALF_OPEN: 1, BreakerState.CLOSED: 1}


def test_tripping_while_a_probe_runs_makes_the_probe_say_nothing() -> None:
    """The operator's word outweighs the success of what was sent before."""
    stage = Stage(engine("a"), settings=Settings(breaker=BreakerSettings(threshold=1)))
    stage.do(0.0, arrive("r1", max_attempts=1))
    stage.do(0.0, failed("r1"))
    stage.do(60.0, arrive("probe"))
    stage.do(61.0, Tripped("a"))
    stage.do(62.0, done("probe"))
    assert view(stage, "a").breaker is BreakerState.OPEN
    assert stage.wait(120.0) == []
    assert stage.do(121.0, arrive("r2")) == ["join r2", "dispatch r2 #1 a"]


def test_mending_closes_the_breaker_and_ends_the_cooldown() -> None:
    """What waits is sent at once, even where the engine had asked to be left alone."""
    stage = Stage(engine("a"), settings=Settings(breaker=BreakerSettings(threshold=1)))
    stage.do(0.0, arrive("r1"))
    stage.do(0.0, failed("r1", Cause.RATE_LIMITED, retry_after=9.0))
    stage.do(0.0, Tripped("a"))
    shown = view(stage, "a")
    assert (shown.cooldown, shown.cooldown_because, shown.breaker_opens_in) == (9.0, "rate_limited", 60.0)
    assert stage.do(1.0, Mended("a")) == []
    assert view(stage, "a").breaker is BreakerState.CLOSED
    assert stage.do(1.0, arrive("r2")) == ["join r2", "dispatch r2 #1 a"]


# ---------------------------------------------------------------------------------------------------- a restart


def test_what_was_learned_is_there_again_in_the_next_process() -> None:
    """Speed, reliability, the breaker's rest and its longer wait, the cooldown; a closed breaker stays closed."""
    settings = Settings(breaker=BreakerSettings(threshold=1, recovery=10.0))
    first = Stage(engine("a"), engine("b", 2), settings=settings)
    first.do(0.0, Tripped("a"))
    first.do(0.0, arrive("r1", only="b"))
    first.do(0.0, begun("r1"))
    first.do(2.0, done("r1", completion=100))
    first.do(10.0, arrive("r2", only="a", max_attempts=1))
    first.do(11.0, failed("r2"))
    first.do(12.0, arrive("r3", only="b", max_attempts=1))
    first.do(12.0, failed("r3", Cause.RATE_LIMITED, retry_after=8.0))
    learned = first.scheduler.learned(14.0)
    second = Stage(engine("a"), engine("b", 2), settings=settings)
    second.do(100.0, Recalled(learned))
    a, b = view(second, "a"), view(second, "b")
    assert (a.breaker, a.breaker_opens_in, a.reliability) == (BreakerState.OPEN, 17.0, view(first, "a").reliability)
    assert (b.breaker, b.speed, b.cooldown) == (BreakerState.CLOSED, 50.0, 6.0)
    second.do(120.0, arrive("r4", only="a", max_attempts=1))
    second.do(120.0, failed("r4"))
    assert view(second, "a").breaker_opens_in == 40.0
