"""Classes, guests and patience: who is promoted, who gets in past a limit, who waits for which instance."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.settings import FairnessSettings, GateSettings, MetricsSettings, QueueSettings, Settings
from headrace.model import AnswerForm, EngineReport, Progressed, Reported, ServiceClass
from tests.core.script import Stage, arrive, begun, done, engine, more, play

_BATCH, _INTERACTIVE = ServiceClass.BATCH, ServiceClass.INTERACTIVE
_ROOMY = QueueSettings(size=10**6, per_user=10**6, timeouts=dict.fromkeys(ServiceClass, 1e9))


def _settings(promote_after: float = 600.0) -> Settings:
    fairness = FairnessSettings(calibrate=False, head_start=0.0, promote_after=promote_after)
    return Settings(queue=_ROOMY, fairness=fairness)


def test_batch_goes_once_the_look_at_an_idle_machine_is_over() -> None:
    """One stream shows what an adaptive instance does alone; when the time for that is over the next batch request goes
    as it arrives, though nothing happened at the instance in between."""
    stage = Stage(engine("a", 8, adaptive=True), settings=_settings())
    stage.do(0.0, arrive("b1", "ann", service_class=_BATCH, form=AnswerForm.STREAM))
    stage.do(20.0, arrive("b2", "ann", service_class=_BATCH, form=AnswerForm.STREAM))

    assert stage.sent == [("b1", "a"), ("b2", "a")]


# ---------------------------------------------------------------------------------------------------- promotion


def test_batch_that_waited_its_time_is_normal() -> None:
    """Two batch requests of one user wait behind a busy instance: after ten minutes they count as normal."""
    stage = Stage(engine("a"), settings=_settings(promote_after=600.0))
    stage.do(0.0, arrive("x", "ann", service_class=_BATCH))
    stage.do(0.0, arrive("b1", "bob", service_class=_BATCH))
    stage.do(500.0, arrive("b2", "bob", service_class=_BATCH))
    stage.wait(599.0)
    before = stage.scheduler.snapshot(599.0).queued_by_class
    stage.wait(601.0)
    after = stage.scheduler.snapshot(601.0).queued_by_class

    assert (before[_BATCH], before[ServiceClass.NORMAL]) == (2, 0)
    assert (after[_BATCH], after[ServiceClass.NORMAL]) == (1, 1)
    stage.do(602.0, done("x"))
    assert stage.sent[-1] == ("b1", "a")


def test_time_at_an_instance_is_no_waiting() -> None:
    """A batch request that runs is not promoted by it; what it waited before counts when it comes back."""
    stage = Stage(engine("a", 2), settings=_settings(promote_after=100.0))
    stage.do(0.0, arrive("b", service_class=_BATCH))
    stage.wait(500.0)

    assert stage.scheduler.snapshot(500.0).running == 1
    stage.do(500.0, done("b"))
    assert stage.ending("b") == "answered"


def test_no_promotion_is_pending_when_a_batch_request_has_left() -> None:
    """Whatever way it ends, its timer goes with it."""
    stage = Stage(engine("a"), settings=_settings(promote_after=100.0))
    stage.do(0.0, arrive("x"))
    stage.do(0.0, arrive("b", service_class=_BATCH, queue_timeout=5.0))
    stage.wait(6.0)

    assert stage.ending("b") == "queue_timeout"
    assert len(stage.scheduler._book.timers) == 0, "the running one has no deadline"


# ---------------------------------------------------------------------------------------------------- guests


def test_a_guest_does_not_wait_for_the_flood_to_end_an_answer() -> None:
    """A found limit is full of one user's requests: the next of his waits, another user's first one goes."""
    stage = Stage(engine("a", 64, adaptive=True), settings=_settings())
    for number in range(9):
        stage.do(0.0, arrive(f"p{number}", "power"))
    assert "p8" not in stage.running

    assert stage.do(1.0, arrive("s", "single")) == ["join s", "dispatch s #1 a"]


def test_a_said_limit_holds_for_guests_too() -> None:
    """`max_concurrent` without adaption is the engine's own room: nobody exceeds it."""
    stage = Stage(engine("a", 8), settings=_settings())
    for number in range(9):
        stage.do(0.0, arrive(f"p{number}", "power"))

    assert stage.do(1.0, arrive("s", "single")) == ["join s"]


def test_batch_is_no_guest() -> None:
    """The places kept for guests are for those somebody waits for."""
    stage = Stage(engine("a", 64, adaptive=True), settings=_settings())
    for number in range(9):
        stage.do(0.0, arrive(f"p{number}", "power"))

    assert stage.do(1.0, arrive("b", "single", service_class=_BATCH)) == ["join b"]


@settings(max_examples=30, deadline=None)
@given(flood=st.integers(20, 60), tokens=st.integers(1, 400), lengths=st.lists(st.integers(1, 500), min_size=1))
def test_a_newcomer_waits_for_one_slot_at_most(flood: int, tokens: int, lengths: list[int]) -> None:
    """However long the queue of another: whoever comes new is sent with the first place that becomes free."""
    stage = Stage(engine("a", 4), settings=_settings())
    for number in range(flood):
        stage.do(0.0, arrive(f"p{number}", "power", prompt_tokens=lengths[number % len(lengths)]))
    stage.do(1.0, done(next(iter(stage.running)), 10, tokens))

    stage.do(2.0, arrive("s", "single", prompt_tokens=300))
    stage.do(3.0, done(next(iter(stage.running)), 10, tokens))

    assert stage.sent[-1] == ("s", "a")


@settings(max_examples=20, deadline=None)
@given(long=st.lists(st.integers(1, 400), min_size=1, max_size=20), short=st.lists(st.integers(1, 400), min_size=1))
def test_batch_gets_its_floor(long: list[int], short: list[int]) -> None:
    """Interactive and batch flood together, six to one: batch is served a seventh, but for what a few requests cost."""
    stage = Stage(engine("a", 2), settings=_settings())
    for number in range(300):
        for letter, of in (("i", _INTERACTIVE), ("b", _BATCH)):
            stage.do(0.0, arrive(f"{letter}{number}", letter, service_class=of, prompt_tokens=100))
    served: Counter[str] = Counter()
    for turn in range(250):
        name = next(iter(stage.running))
        tokens = (short if name[0] == "i" else long)[turn % len(short if name[0] == "i" else long)]
        served[name[0]] += 100 + 2 * tokens
        stage.do(float(turn), begun(name))
        stage.do(float(turn), more(name, tokens))
        stage.do(float(turn), done(name, 100, tokens))

    share = 1.0 / 7.0
    largest = 100 + 2 * max(400, 256)
    assert served["b"] >= share * sum(served.values()) - 4 * largest


# ---------------------------------------------------------------------------------------------------- home


def test_a_call_waits_for_its_home_as_long_as_that_pays() -> None:
    """Its beginning is known at a full instance: it waits there, then goes elsewhere although nothing happened."""
    stage = Stage(engine("a", 1), engine("b", 1), settings=_settings())
    known = tuple(range(100))
    stage.do(0.0, arrive("x", prompt_tokens=6400, prefix=known, prefix_block=64, form=AnswerForm.STREAM))
    home = stage.sent[0][1]
    stage.do(0.5, begun("x"))

    orders = stage.do(0.6, arrive("y", "bob", prompt_tokens=6500, prefix=known, prefix_block=64))
    assert orders == ["join y"], "held for its home"
    assert stage.wait(1.5) == []
    assert stage.wait(1.7) == [f"dispatch y #1 {'b' if home == 'a' else 'a'}"]


def test_others_pass_a_call_that_waits_for_its_home() -> None:
    """Patience is nobody else's delay."""
    stage = Stage(engine("a", 1), engine("b", 1), settings=_settings())
    known = tuple(range(100))
    stage.do(0.0, arrive("x", prompt_tokens=6400, prefix=known, prefix_block=64, form=AnswerForm.STREAM))
    stage.do(0.5, begun("x"))
    stage.do(0.6, arrive("y", "bob", prompt_tokens=6500, prefix=known, prefix_block=64))

    assert stage.do(0.7, arrive("z", "cid"))[-1].startswith("dispatch z #1")


# ---------------------------------------------------------------------------------------------------- metrics


def test_what_a_report_shut_opens_when_the_report_goes_stale() -> None:
    """The engine's queue was long and its metrics fall silent: the scheduler wakes by itself and goes on without."""
    told = Settings(queue=_ROOMY, gate=GateSettings(waiting_below=3.0), metrics=MetricsSettings(stale_after=0.75))
    stage = Stage(engine("a", 8), settings=told)
    play(
        stage,
        [
            (0.0, arrive("x"), ["join x", "dispatch x #1 a"]),
            (1.0, Reported("a", EngineReport(waiting=5.0, running=1.0)), []),
            (1.1, arrive("y"), ["join y"]),
        ],
    )
    assert stage.wait(1.7) == []
    assert stage.wait(1.8) == ["dispatch y #1 a"]


def test_progress_of_a_promoted_call_is_charged_to_its_new_class() -> None:
    """What it is charged stands in the normal account from its promotion on."""
    stage = Stage(engine("a"), settings=_settings(promote_after=10.0))
    stage.do(0.0, arrive("x", "ann"))
    stage.do(0.0, arrive("b", "bob", service_class=_BATCH, prompt_tokens=50))
    stage.wait(11.0)
    stage.do(12.0, done("x"))
    stage.do(13.0, begun("b"))
    stage.do(13.0, lambda at: Progressed(at.calls["b"], 1, 10))
    pool = next(iter(stage.scheduler._fleet.pools()))

    assert "bob" in pool.tree.root.children["normal"].children["acme"].children
    assert pool.tree.root.children["normal"].in_flight == 1
