"""Over many instances: taking turns, and instances that come, go and change under the requests."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from headrace.core.settings import RoutingSettings, Settings, Strategy
from headrace.model import Ending, Probed, Reconfigured
from tests.core.inventory import holdings, nothing_held
from tests.core.script import Stage, arrive, done, engine, failed, leave, looked, play

_TURNS = Settings(routing=RoutingSettings(strategy=Strategy.ROUND_ROBIN))
_STRATEGIES = [Strategy.ROUND_ROBIN, Strategy.FAIR_LOAD, Strategy.LEAST_IN_FLIGHT, Strategy.WEIGHTED]


def ask(stage: Stage, number: int, model: str = "m") -> str:
    """One request after the other; returns where it went."""
    stage.do(float(number), arrive(f"r{number}", model=model))
    where = stage.sent[-1][1]
    stage.do(float(number), done(f"r{number}"))
    return where


@pytest.mark.parametrize("strategy", _STRATEGIES)
def test_other_models_do_not_shift_the_turn(strategy: Strategy) -> None:
    """M1 on A and B, M2 on C, in alternation: A and B get exactly half of M1 each."""
    settings = Settings(routing=RoutingSettings(strategy=strategy))
    stage = Stage(engine("a", 1, "m1"), engine("b", 1, "m1"), engine("c", 1, "m2"), settings=settings)
    went = Counter(ask(stage, number, "m1" if number % 2 else "m2") for number in range(200))
    assert went == {"a": 50, "b": 50, "c": 100}


def test_health_checks_do_not_shift_the_turn() -> None:
    """A check between every two requests changes nothing."""
    stage = Stage(engine("a"), engine("b"), settings=_TURNS)
    went = Counter[str]()
    for number in range(100):
        stage.do(float(number), Probed("a", healthy=True))
        went[ask(stage, number)] += 1
    assert went == {"a": 50, "b": 50}


@pytest.mark.parametrize("strategy", _STRATEGIES)
def test_when_one_of_three_is_out_the_others_share_evenly_and_it_returns_without_a_flood(strategy: Strategy) -> None:
    """A and C take 150 each; back again, B gets its third and no burst."""
    settings = Settings(routing=RoutingSettings(strategy=strategy))
    stage = Stage(engine("a"), engine("b"), engine("c"), settings=settings)
    for _ in range(3):
        stage.do(0.0, Probed("b", healthy=False))
    went = Counter(ask(stage, number) for number in range(300))
    assert went == {"a": 150, "c": 150}
    stage.do(300.0, Probed("b", healthy=True))
    after = [ask(stage, number) for number in range(300, 600)]
    assert all(abs(count - 100) <= 2 for count in Counter(after).values())
    assert Counter(after[:9])["b"] <= 4


def test_the_order_in_which_instances_are_listed_means_nothing() -> None:
    """Discovery shuffles the list before every request: still half and half, and no state piles up."""
    chance = Random(5)
    instances = [engine("a", 1, "m1"), engine("b", 1, "m1"), engine("c", 1, "m2")]
    stage = Stage(*instances, settings=_TURNS)
    went = Counter[str]()
    for number in range(200):
        chance.shuffle(instances)
        stage.do(float(number), Reconfigured(tuple(instances)))
        went[ask(stage, number, "m1")] += 1
    assert went == {"a": 100, "b": 100}
    assert len(list(stage.scheduler._fleet.pools())) <= 2


# ---------------------------------------------------------------------------------------------------- reloads


def test_queued_requests_follow_their_model_to_other_instances() -> None:
    """Their instance is removed, another serves the model now: they are sent there; what runs may finish."""
    stage = Stage(engine("a"))
    play(
        stage,
        [
            (0.0, arrive("r1"), ["join r1", "dispatch r1 #1 a"]),
            (0.0, arrive("r2"), ["join r2"]),
            (1.0, Reconfigured((engine("b"),)), ["dispatch r2 #1 b"]),
            (2.0, done("r1"), ["settle r1 answered"]),
            (3.0, done("r2"), ["settle r2 answered"]),
        ],
    )
    stage.wait(100.0)
    assert nothing_held(stage.scheduler)


def test_queued_requests_are_sent_to_an_instance_that_is_added() -> None:
    """They do not wait on for the old one alone."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r1"))
    stage.do(0.0, arrive("r2"))
    assert stage.do(1.0, Reconfigured((engine("a"), engine("b")))) == ["dispatch r2 #1 b"]


def test_an_instance_that_no_longer_serves_the_model_gets_none_of_it() -> None:
    """Same id, same address, other models: what is queued goes elsewhere."""
    stage = Stage(engine("a", 1, "m"), engine("b", 1, "m"))
    stage.do(0.0, arrive("r1"))
    stage.do(0.0, arrive("r2"))
    stage.do(0.0, arrive("r3"))
    stage.do(1.0, Reconfigured((engine("a", 1, "other"), engine("b", 1, "m"))))
    assert stage.do(2.0, done("r1")) == ["settle r1 answered"]
    assert stage.do(3.0, done("r2")) == ["settle r2 answered", "dispatch r3 #1 b"]


def _down(name: str) -> Probed:
    """A check that leaves no doubt."""
    return Probed(name, healthy=False, definite=True)


def test_who_waits_for_an_instance_that_stays_down_is_told() -> None:
    """Bound to it he has nobody else to wait for: told like all are when every instance is down, after the time of a
    restart; who may go elsewhere waits on, and so does he whose instance comes back in time."""
    stage = Stage(engine("a"), engine("b"), engine("c"))
    for number in range(3):
        stage.do(0.0, arrive(f"runs{number}"))
    for name in "ab":
        stage.do(0.0, arrive(f"for {name}", only=name))
    stage.do(0.0, arrive("for any"))
    for at, name in ((1.0, "a"), (1.0, "b"), (8.0, "a")):
        assert stage.do(at, _down(name)) == []
    stage.do(8.0, Probed("b", healthy=True))
    assert stage.do(11.0, _down("a"))[0] == "settle for a no_instance"
    assert stage.do(30.0, _down("b")) == []
    assert stage.scheduler.snapshot(30.0).queued == 2


def test_when_every_instance_stays_down_who_waits_is_told() -> None:
    """No check is needed to find out that the time is over; one who comes meanwhile is told at the door."""
    stage = Stage(engine("a"), engine("b"))
    for number in range(4):
        stage.do(0.0, arrive(f"r{number}"))
    stage.do(1.0, _down("a"))
    stage.do(5.0, _down("b"))
    stage.wait(14.9)
    assert [stage.ending(f"r{number}") for number in (2, 3)] == [None, None]
    stage.wait(15.0)
    assert [stage.ending(f"r{number}") for number in (2, 3)] == [Ending.NO_INSTANCE] * 2


def test_when_no_instance_serves_the_model_any_more_who_waits_is_told() -> None:
    """Queued, looking and waiting for a retry: all told at once; the running one may finish, but is not retried."""
    stage = Stage(engine("a", 2))
    stage.do(0.0, arrive("runs"))
    stage.do(0.0, arrive("retries"))
    stage.do(0.0, failed("retries"))
    stage.do(0.0, arrive("looks", key="k", look_up=True))
    stage.do(0.0, arrive("waits"))
    stage.do(1.0, Reconfigured((engine("b", 1, "other"),)))
    assert {stage.ending(name) for name in ("retries", "looks", "waits")} == {Ending.NO_INSTANCE}
    assert stage.do(2.0, failed("runs")) == ["settle runs inference_failure", "bury runs inference_failure"]
    stage.do(3.0, looked("looks", hit=False))
    stage.wait(100.0)
    assert nothing_held(stage.scheduler)


def test_a_retry_after_a_reload_goes_to_the_new_instances() -> None:
    """The running one fails after its instance was replaced: the next attempt is made where the model is now."""
    stage = Stage(engine("a"))
    play(
        stage,
        [
            (0.0, arrive("r"), ["join r", "dispatch r #1 a"]),
            (1.0, Reconfigured((engine("b"),)), []),
            (2.0, failed("r"), ["dispatch r #2 b"]),
            (3.0, done("r"), ["settle r answered"]),
        ],
    )
    stage.wait(100.0)
    assert nothing_held(stage.scheduler)


def test_a_call_that_waits_for_its_retry_is_sent_to_the_new_instances() -> None:
    """Its timer fires after the reload: not into a queue that nobody serves."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r"))
    stage.do(1.0, failed("r"))
    stage.do(2.0, Reconfigured((engine("b"),)))
    assert stage.wait(8.0) == ["dispatch r #2 b"]


def test_a_call_that_asks_the_cache_is_sent_to_the_new_instances() -> None:
    """The cache answers after the reload."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r", key="k", look_up=True))
    stage.do(1.0, Reconfigured((engine("b"),)))
    assert stage.do(2.0, looked("r", hit=False)) == ["dispatch r #1 b"]


def test_what_was_learned_of_an_instance_survives_a_reload_of_the_same_instance() -> None:
    """Its cooldown goes on; a new address is a new instance."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r1", max_attempts=1))
    stage.do(0.0, failed("r1"))
    stage.do(1.0, Reconfigured((engine("a", 2),)))
    assert stage.do(1.0, arrive("r2")) == ["join r2"]
    assert stage.do(2.0, Reconfigured((engine("a", 2, address="http://new"),))) == ["dispatch r2 #1 a"]


def test_a_smaller_limit_applies_to_what_is_sent_from_now_on() -> None:
    """Three run, two are allowed now: the next is sent when only one is left."""
    stage = Stage(engine("a", 3))
    for number in range(4):
        stage.do(0.0, arrive(f"r{number}"))
    stage.do(1.0, Reconfigured((engine("a", 2),)))
    assert stage.do(2.0, done("r0")) == ["settle r0 answered"]
    assert stage.do(3.0, done("r1")) == ["settle r1 answered", "dispatch r3 #1 a"]


def test_reloading_does_not_pile_up_state() -> None:
    """A hundred reloads with changing sets and callers who leave: nothing is held, pools are few."""
    stage = Stage(engine("a"))
    for number in range(100):
        names = ("a", "b", "c")[: 1 + number % 3]
        stage.do(float(number), Reconfigured(tuple(engine(name, 1, "*", f"only-{number}") for name in names)))
        stage.do(float(number), arrive(f"r{number}"))
        stage.do(float(number), leave(f"r{number}"))
    stage.wait(1000.0)
    assert nothing_held(stage.scheduler)
    assert len(list(stage.scheduler._fleet.pools())) <= 3
    assert holdings(stage.scheduler)["watches"] == 0


def test_a_request_bound_to_an_instance_is_tried_there_only() -> None:
    """Its attempts stay there, nobody shares its call, and without that instance it is told at once."""
    stage = Stage(engine("a", 2), engine("b", 2))
    play(
        stage,
        [
            (0.0, arrive("r", key="k", only="b"), ["join r", "dispatch r #1 b"]),
            (0.0, arrive("s", key="k"), ["join s", "dispatch s #1 a"]),
            (0.0, arrive("t", key="k", only="b"), ["join t", "dispatch t #1 b"]),
            (1.0, failed("r"), []),
            (2.0, done("s"), ["settle s answered"]),
            (2.0, leave("t"), ["abort t #1", "settle t cancelled"]),
            (7.0, arrive("u", only="c"), ["dispatch r #2 b", "settle u no_instance", "bury u no_instance"]),
            (7.0, failed("r"), []),
            (8.0, Reconfigured((engine("a", 2),)), ["settle r no_instance", "bury r no_instance"]),
        ],
    )
    assert nothing_held(stage.scheduler)
