"""Who goes next, seen from outside: floods, weights, classes, orders within a user."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.core.settings import FairnessSettings, PolicyName, QueueSettings, Settings
from headrace.model import AnswerForm, Ending, ServiceClass
from tests.core.inventory import nothing_held
from tests.core.script import Stage, arrive, begun, done, engine, failed, leave, play

_LARGE = QueueSettings(size=5000, per_user=5000, timeouts=dict.fromkeys(ServiceClass, 1e6))


def fair(**fairness: object) -> Settings:
    """Settings with room for a flood."""
    return Settings(queue=_LARGE, fairness=FairnessSettings(**fairness))  # type: ignore[arg-type]


def serve(stage: Stage, count: int, completion: int = 10) -> list[str]:
    """Let the engines finish `count` answers, oldest first; returns who was answered."""
    order: list[str] = []
    for _ in range(count):
        name = next(iter(stage.running))
        stage.do(stage.now + 1.0, done(name, completion=completion))
        order.append(name)
    return order


@pytest.mark.parametrize("policy", [PolicyName.FAIR, PolicyName.ROUND_ROBIN])
def test_a_single_request_passes_a_flood(policy: PolicyName) -> None:
    """One user sends 200, another one: hers is sent after at most two releases of a slot."""
    stage = Stage(engine("a", 4), settings=fair(policy=policy))
    for number in range(200):
        stage.do(0.0, arrive(f"p{number}", "power"))
    stage.do(0.0, arrive("single", "sue"))
    serve(stage, 2)
    assert ("single", "a") in stage.sent


def test_first_come_first_served_makes_her_wait_for_all() -> None:
    """Under `fifo` the same request is sent after the 200 before it: the baseline does what it says."""
    stage = Stage(engine("a", 4), settings=fair(policy=PolicyName.FIFO))
    for number in range(200):
        stage.do(0.0, arrive(f"p{number}", "power"))
    stage.do(0.0, arrive("single", "sue"))
    serve(stage, 196)
    assert ("single", "a") not in stage.sent
    serve(stage, 1)
    assert stage.sent[-1] == ("single", "a")


def test_who_asks_once_a_second_waits_for_one_answer_only() -> None:
    """A thousand are queued before one slot; whoever comes new waits at most for the running one and one more."""
    stage = Stage(engine("a"), settings=fair())
    for number in range(1000):
        stage.do(0.0, arrive(f"x{number}", "x"))
    for number in range(20):
        stage.do(stage.now, arrive(f"y{number}", "y"))
        asked = stage.now
        while f"y{number}" not in stage.settled:
            serve(stage, 1)
        assert stage.now - asked <= 3.0


@pytest.mark.parametrize("policy", [PolicyName.FAIR, PolicyName.ROUND_ROBIN])
def test_weights_divide_three_to_one(policy: PolicyName) -> None:
    """Both users always have requests queued: of 60 answers about 45 are of the one with three times the weight."""
    stage = Stage(engine("a"), settings=fair(policy=policy, user_weights={"acme/heavy": 3.0, "heavy": 9.0}))
    for number in range(80):
        stage.do(0.0, arrive(f"h{number}", "heavy", prompt_tokens=100))
        stage.do(0.0, arrive(f"l{number}", "light", prompt_tokens=100))
    served = Counter(name[0] for name in serve(stage, 60))
    assert abs(served["h"] - 45) <= 3


def test_tenants_share_by_weight_however_many_users_they_have() -> None:
    """A tenant with ten users gets no more than one with a single user."""
    stage = Stage(engine("a"), settings=fair())
    for number in range(40):
        stage.do(0.0, arrive(f"m{number}", f"user-{number % 10}", tenant="many"))
        stage.do(0.0, arrive(f"o{number}", "only", tenant="one"))
    served = Counter(name[0] for name in serve(stage, 40))
    assert abs(served["m"] - served["o"]) <= 2


def test_long_answers_are_paid_for() -> None:
    """Who gets answers four times as long gets about a quarter as many: tokens are shared, not turns."""
    stage = Stage(engine("a"), settings=fair())
    for number in range(150):
        stage.do(0.0, arrive(f"s{number}", "short"))
        stage.do(0.0, arrive(f"l{number}", "long"))
    served: Counter[str] = Counter()
    for _ in range(100):
        name = next(iter(stage.running))
        stage.do(stage.now + 1.0, done(name, completion=400 if name[0] == "l" else 100))
        served[name[0]] += 1
    assert served["s"] / served["l"] == pytest.approx(4.0, rel=0.25)


def test_a_return_after_a_long_absence_earns_no_credit() -> None:
    """A user who was idle for ten minutes shares from then on; he does not catch up on what he missed."""
    stage = Stage(engine("a"), settings=fair())
    stage.do(0.0, arrive("y0", "y"))
    for number in range(300):
        stage.do(0.0, arrive(f"x{number}", "x"))
    serve(stage, 100)
    stage.do(600.0, arrive("y1", "y"))
    for number in range(60):
        stage.do(600.0, arrive(f"y-{number}", "y"))
    served = Counter(name[0] for name in serve(stage, 40))
    assert abs(served["x"] - served["y"]) <= 2


def test_a_newcomer_does_not_profit_from_what_runs_long() -> None:
    """Tokens far beyond the estimate count at once: a newcomer starts even with them, not thousands of tokens ahead."""
    stage = Stage(engine("a"), settings=fair())
    stage.do(0.0, arrive("x0", "x"))
    for number in range(30):
        stage.do(0.0, arrive(f"x-{number}", "x"))
        stage.do(0.0, arrive(f"z-{number}", "z"))
    stage.do(0.0, begun("x0"))
    serve(stage, 4)
    for number in range(30):
        stage.do(stage.now, arrive(f"y-{number}", "y"))
    served = Counter(name[0] for name in serve(stage, 30))
    assert max(served.values()) - min(served.values()) <= 2, served


def test_no_class_starves_another() -> None:
    """Interactive floods, one batch request waits: it is served within its share, long before its limit."""
    stage = Stage(engine("a"), settings=fair())
    for number in range(100):
        stage.do(0.0, arrive(f"i{number}", "ann", service_class=ServiceClass.INTERACTIVE))
    stage.do(0.0, arrive("b", "bob", service_class=ServiceClass.BATCH))
    serve(stage, 3)
    assert ("b", "a") in stage.sent


def test_classes_share_by_weight() -> None:
    """All classes flooded, without a head start: 6 : 3 : 1."""
    stage = Stage(engine("a"), settings=fair(head_start=0.0))
    for number in range(120):
        for letter, service_class in zip("inb", ServiceClass, strict=True):
            stage.do(0.0, arrive(f"{letter}{number}", "ann", service_class=service_class))
    served = Counter(name[0] for name in serve(stage, 100))
    assert abs(served["i"] - 60) <= 3
    assert abs(served["n"] - 30) <= 3
    assert abs(served["b"] - 10) <= 3


def test_a_blocked_model_does_not_block_another() -> None:
    """The head wants a full instance; whoever wants a free one goes at once."""
    stage = Stage(engine("a", 1, "m1"), engine("b", 1, "m2"))
    play(
        stage,
        [
            (0.0, arrive("x1", "x", model="m1"), ["join x1", "dispatch x1 #1 a"]),
            (0.0, arrive("x2", "x", model="m1"), ["join x2"]),
            (0.1, arrive("y1", "y", model="m2"), ["join y1", "dispatch y1 #1 b"]),
        ],
    )


def test_a_large_prompt_is_overtaken_for_a_while_only() -> None:
    """It fits the window only alone: small ones go first up to the slack, then the window empties for it."""
    stage = Stage(engine("a", 50, window_tokens=1000), settings=fair(slack=500.0))
    stage.do(0.0, arrive("small", "s", prompt_tokens=100, output_cap=1, form=AnswerForm.STREAM))
    stage.do(0.0, arrive("large", "l", prompt_tokens=5000, output_cap=1, form=AnswerForm.STREAM))
    for number in range(30):
        stage.do(0.0, arrive(f"s{number}", "s", prompt_tokens=100, output_cap=1, form=AnswerForm.STREAM))
    waiting = 0
    while ("large", "a") not in stage.sent:
        name = next(iter(stage.running))
        stage.do(stage.now, begun(name))
        stage.do(stage.now, done(name, prompt=100))
        waiting += 1
    assert waiting <= 12


def test_even_without_levels_a_large_prompt_goes_in_the_end() -> None:
    """Under `fifo` a head that fits nowhere is overtaken a bounded number of times."""
    stage = Stage(engine("a", 50, window_tokens=1000), settings=fair(policy=PolicyName.FIFO))
    stage.do(0.0, arrive("first", prompt_tokens=900, form=AnswerForm.STREAM))
    stage.do(0.0, arrive("large", prompt_tokens=5000, form=AnswerForm.STREAM))
    for number in range(40):
        stage.do(0.0, arrive(f"s{number}", prompt_tokens=1, form=AnswerForm.STREAM))
    while ("large", "a") not in stage.sent:
        stage.do(stage.now, done(next(iter(stage.running))))
    assert stage.sent.index(("large", "a")) <= 17


def test_within_a_user_the_deadline_goes_first_then_the_shorter() -> None:
    """Deadlines before lengths; both only order one user's own requests."""
    stage = Stage(engine("a"))
    for ticket, extra in (
        ("first", {}),
        ("long", {"prompt_tokens": 30_000}),
        ("short", {"prompt_tokens": 10}),
        ("urgent", {"prompt_tokens": 30_000, "deadline": 50.0}),
    ):
        stage.do(0.0, arrive(ticket, output_cap=50, **extra))
    assert serve(stage, 4) == ["first", "urgent", "short", "long"]


def test_a_long_job_is_not_overtaken_for_ever() -> None:
    """Short ones overtake only if they came soon after it."""
    stage = Stage(engine("a"), settings=fair())
    stage.do(0.0, arrive("first"))
    stage.do(0.0, arrive("long", prompt_tokens=50_000, output_cap=50))
    stage.do(5.0, arrive("early", prompt_tokens=10, output_cap=50))
    stage.do(1000.0, arrive("late", prompt_tokens=10, output_cap=50))
    assert serve(stage, 4) == ["first", "early", "long", "late"]


def test_what_is_learned_later_does_not_overtake_what_was_guessed() -> None:
    """The first are queued while nobody knows how long answers are; they are short, and later ones come after them."""
    stage = Stage(engine("a"), settings=fair())
    for number in range(4):
        stage.do(0.0, arrive(f"x{number}", output_cap=4000))
    for number in range(4, 8):
        stage.do(stage.now + 1.0, done(next(iter(stage.running)), completion=2))
        stage.do(stage.now, arrive(f"x{number}", output_cap=4000))
    serve(stage, 4)
    assert [name for name, _ in stage.sent] == [f"x{number}" for number in range(8)]


def test_a_deadline_after_the_longest_wait_orders_nothing() -> None:
    """A client's usual timeout of ten minutes does not put its plain requests before its streams, which have none."""
    stage = Stage(engine("a"))
    for ticket, deadline in (("first", None), ("stream", None), ("plain", 600.0), ("soon", 50.0)):
        stage.do(0.0, arrive(ticket, deadline=deadline))
    assert serve(stage, 4) == ["first", "soon", "stream", "plain"]


def test_ageing_ends_before_the_wait_does() -> None:
    """However long it says it will be, a request goes before what came after half of its longest wait."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("first", queue_timeout=1e6))
    stage.do(0.0, arrive("huge", prompt_tokens=10**6))
    stage.do(29.0, arrive("early", prompt_tokens=10))
    stage.do(31.0, arrive("late", prompt_tokens=10))
    assert serve(stage, 4) == ["first", "early", "huge", "late"]


def test_the_cap_of_a_user_leaves_room_for_others() -> None:
    """With two places for each user a flood fills two, and the third stays for whoever comes."""
    stage = Stage(engine("a", 3), settings=fair(user_in_flight=2))
    play(
        stage,
        [
            (0.0, arrive("x1", "x"), ["join x1", "dispatch x1 #1 a"]),
            (0.0, arrive("x2", "x"), ["join x2", "dispatch x2 #1 a"]),
            (0.0, arrive("x3", "x"), ["join x3"]),
            (1.0, arrive("y1", "y"), ["join y1", "dispatch y1 #1 a"]),
            (2.0, done("y1"), ["settle y1 answered"]),
            (3.0, done("x1"), ["settle x1 answered", "dispatch x3 #1 a"]),
        ],
    )


def test_a_failed_attempt_is_charged_once() -> None:
    """The next try keeps the charge of the first and goes before the user's other requests."""
    stage = Stage(engine("a"), engine("b"))
    play(
        stage,
        [
            (0.0, arrive("x1", "x"), ["join x1", "dispatch x1 #1 a"]),
            (0.0, arrive("y1", "y"), ["join y1", "dispatch y1 #1 b"]),
            (0.0, arrive("x2", "x"), ["join x2"]),
            (1.0, failed("x1"), []),
            (1.0, done("y1"), ["settle y1 answered", "dispatch x1 #2 b"]),
        ],
    )
    spread = stage.scheduler._fleet.states["a"].pools[0].tree.root.children["normal"].children["acme"].children["x"]
    assert spread.holds == 1


def test_the_flood_can_leave_without_a_trace() -> None:
    """All callers go at once; nothing stays behind."""
    stage = Stage(engine("a", 4), settings=fair())
    for number in range(200):
        stage.do(0.0, arrive(f"p{number}", "power"))
    for number in range(200):
        stage.do(1.0, leave(f"p{number}"))
    assert set(stage.settled) == {f"p{number}" for number in range(200)}
    assert all(stage.ending(f"p{number}") is Ending.CANCELLED for number in range(200))
    stage.wait(1e6)
    assert nothing_held(stage.scheduler)


def test_who_waits_can_see_where_he_stands() -> None:
    """Position and time to the start of one user's waiting requests, joined ones too; others' are not shown."""
    stage = Stage(engine("a"))
    stage.do(0.0, arrive("r0"))
    for number in range(3):
        stage.do(0.0, arrive(f"x{number}", "x", key=f"k{number}"))
        stage.do(0.0, arrive(f"y{number}", "y"))
    stage.do(0.0, arrive("z", "z", key="k1"))
    shown = stage.scheduler.positions("acme", "x")
    assert [(name, place) for name, place, _ in shown] == [("x0", 2), ("x1", 4), ("x2", 6)]
    assert all(seconds >= 1.0 for _, _, seconds in shown)
    assert [name for name, _, _ in stage.scheduler.positions("acme", "z")] == ["z"]
    assert stage.scheduler.positions("other", "x") == []
