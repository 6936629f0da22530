"""The promises of `headrace.core.overtaking`: who goes where the one whose turn it is fits nowhere."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.fairness import ShareTree
from headrace.core.settings import QueueSettings, Settings
from headrace.model import ServiceClass
from tests.core.inventory import nothing_held
from tests.core.script import Stage, arrive, done, engine, leave
from tests.core.test_fairness import Tree

_LARGE = QueueSettings(size=5000, per_user=5000, timeouts=dict.fromkeys(ServiceClass, 1e6))
T = 5.0


def tree() -> Tree:
    """Items are `where:name`; those at `any` may go to both places, a and b, the others to one of them."""
    return ShareTree(lambda _: 1.0, lambda _: None, T, lambda item: None if item[:3] == "any" else [item[0]])


def open_at(*places: str) -> Callable[[str], str | None]:
    """What fits while only these places are free."""
    return lambda item: next((place for place in places if item[:3] == "any" or place == item[0]), None)


def serve(share: Tree, count: int, *places: str) -> list[str]:
    """Dispatch up to so many at a charge of 1 each."""
    served: list[str] = []
    for _ in range(count):
        pick = share.pick(open_at(*places))
        if pick is None:
            break
        share.grant(pick[0], 1.0)
        served.append(pick[0].item)
    return served


def test_who_may_go_anywhere_holds_others_to_the_slack() -> None:
    """Nothing fits him: another is served until he is ahead by more than T."""
    share = tree()
    share.push("any:x", ("x",))
    for number in range(20):
        share.push(f"b:{number}", ("y",))
    served = 0
    while (pick := share.pick(lambda item: "b" if item[0] == "b" else None)) is not None:
        share.grant(pick[0], 1.0)
        served += 1
    assert served == T + 1


def test_who_is_bound_to_a_full_place_holds_nobody_up_elsewhere() -> None:
    """He waits for a; all that can go to b does, however far it runs ahead."""
    share = tree()
    share.push("a:x", ("x",))
    for number in range(20):
        share.push(f"any:{number}", ("y",))
    assert len(serve(share, 30, "b")) == 20
    assert serve(share, 30, "a") == ["a:x"]


def test_at_his_place_nobody_runs_ahead_of_him_for_ever() -> None:
    """a is free for small ones only: they pass him up to the slack, then a is kept for him; b stays open to all."""
    share = tree()
    share.push("a:large", ("x",))
    for number in range(20):
        share.push(f"any:{number}", ("y",))

    def small(item: str) -> str | None:
        return "a" if item != "a:large" else None

    served = 0
    while (pick := share.pick(small)) is not None:
        share.grant(pick[0], 1.0)
        served += 1
    assert served == T + 1
    assert len(serve(share, 30, "b")) == 20 - served


def test_within_a_leaf_a_bound_head_is_passed_as_often_as_others_go_elsewhere() -> None:
    """Thirty that go to b pass it; of those that go to its own place, sixteen."""
    share = tree()
    share.push("a:head", ("x",), (0.0, 0.0))
    for number in range(30):
        share.push(f"b:{number}", ("x",), (1.0, 0.0))
    assert len(serve(share, 40, "b")) == 30
    for number in range(30):
        share.push(f"any:{number}", ("x",), (1.0, 0.0))
    served = 0
    while (pick := share.pick(lambda item: "a" if item != "a:head" else None)) is not None:
        share.grant(pick[0], 1.0)
        served += 1
    assert served == 16


def test_many_that_are_bound_alike_are_asked_once() -> None:
    """A leaf of a hundred replays for a full place costs one question, and others are still found."""
    share, asked = tree(), list[str]()
    for user in "uvwx":
        for number in range(25):
            share.push(f"a:{user}{number}", (user,))
    share.push("any:y", ("y",))

    def fits(item: str) -> str | None:
        asked.append(item)
        return "b" if item == "any:y" else None

    pick = share.pick(fits)
    assert pick is not None
    share.grant(pick[0], 1.0)
    assert len(asked) <= 6


def test_replays_at_one_instance_leave_the_others_busy() -> None:
    """Fifty batch requests are bound to an instance that is slow: whoever asks another one never waits for them."""
    stage = Stage(engine("slow"), engine("fast", 4), settings=Settings(queue=_LARGE))
    for number in range(50):
        stage.do(0.0, arrive(f"replay{number}", "ops", service_class=ServiceClass.BATCH, only="slow", output_cap=200))
    for number in range(300):
        stage.do(0.0, arrive(f"n{number}", f"u{number % 3}", prompt_tokens=500, output_cap=200))
    for turn in range(60):
        for name, order in list(stage.running.items()):
            if order.instance.id == "fast" or turn % 20 == 19:
                stage.do(turn + 1.0, done(name, prompt=500, completion=200))
        assert sum(order.instance.id == "fast" for order in stage.running.values()) == 4
    replayed = [name for name, machine in stage.sent if machine == "slow"]
    assert len(replayed) == 4
    assert all(name.startswith("replay") for name in replayed), "the slow one is theirs: they have had the least"
    for name in [*stage.calls]:
        stage.do(stage.now, leave(name))
    stage.wait(1e6)
    assert nothing_held(stage.scheduler)
