"""What the admin API tells of late: how long answers took, and how much was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from headrace import errors
from headrace.model import (
    Abort,
    AnswerForm,
    Arrived,
    BreakerState,
    Cause,
    Decision,
    Dispatch,
    Ending,
    Engine,
    Event,
    Finished,
    Flow,
    Instance,
    InstanceView,
    Join,
    Outcome,
    Reconfigured,
    Request,
    Settle,
    Started,
    Tier,
    Woke,
)
from headrace.runtime.demand import DemandMeter
from headrace.runtime.latencies import KEPT, WINDOW, Latencies, Quantiles, Ring
from headrace.runtime.observe import Metrics

FAST = Instance(id="fast", address="http://a")
SLOW = Instance(id="slow", address="http://b")


def request(name: str, form: AnswerForm = AnswerForm.STREAM) -> Request:
    """A request of that id."""
    return Request(id=name, flow=Flow(), model="m", form=form)


class Seen:
    """What an observer noted of the steps that a test tells."""

    def __init__(self) -> None:
        latencies = Latencies()
        self.of, self.overall = latencies.of, latencies.overall
        self.observer = Metrics(CollectorRegistry(), ["m"], latencies=latencies)

    def __call__(self, event: Event, decisions: Sequence[Decision], now: float) -> None:
        self.observer(event, decisions, now)

    @property
    def open(self) -> int:
        """Requests, calls and attempts that something is remembered of."""
        return self.observer.open


def play(seen: Seen, name: str, instance: Instance, at: float, first: float, took: float, **how: AnswerForm) -> None:
    """One request that is sent at once to `instance` and answered."""
    asked = request(name, **how)
    call = f"c-{name}"
    seen(Arrived(asked), [Join(name, call), Dispatch(call, 1, instance, "m", asked, 0.0)], at)
    seen(Started(call, 1), [], at + first)
    seen(Finished(call, 1, Outcome(Cause.OK)), [Settle(name, call, Ending.ANSWERED)], at + took)


def test_each_instance_has_its_own_times_and_all_have_a_sum() -> None:
    """Percentiles are times that occurred; first tokens and whole answers are told apart."""
    seen = Seen()
    play(seen, "a", FAST, 0.0, 0.1, 1.0)
    play(seen, "b", SLOW, 10.0, 2.0, 8.0)
    assert seen.of("fast", 20.0).latency == Quantiles(1, 19.0, 1.0, 1.0, 1.0)
    assert seen.of("fast", 20.0).first_token.p50 == pytest.approx(0.1)
    assert seen.of("slow", 20.0).latency.p99 == 8.0
    assert (seen.overall(20.0).latency.p50, seen.overall(20.0).latency.p99) == (1.0, 8.0)
    assert seen.of("unknown", 20.0).latency == Quantiles(0, 0.0)
    assert seen.open == 0


def test_a_whole_answer_has_no_first_token() -> None:
    """Its first content comes with its last, which says nothing about reading the prompt."""
    seen = Seen()
    play(seen, "a", FAST, 0.0, 0.9, 1.0, form=AnswerForm.WHOLE)
    assert seen.of("fast", 2.0).first_token.count == 0
    assert seen.overall(2.0).first_token.count == 0
    assert seen.overall(2.0).latency.count == 1


def test_only_answers_count_and_each_attempt_counts_at_its_own_instance() -> None:
    """A failed attempt has no latency; the second one's begins when it was sent, the request's when it came."""
    seen = Seen()
    asked = request("a")
    seen(Arrived(asked), [Join("a", "c"), Dispatch("c", 1, SLOW, "m", asked, 0.0)], 0.0)
    again = Dispatch("c", 2, FAST, "m", asked, 0.0, Cause.SERVER_ERROR)
    seen(Finished("c", 1, Outcome(Cause.SERVER_ERROR)), [again], 4.0)
    seen(Finished("c", 1, Outcome(Cause.OK)), [], 4.5)
    seen(Finished("c", 2, Outcome(Cause.OK)), [Settle("a", "c", Ending.ANSWERED)], 6.0)
    assert seen.of("slow", 6.0).latency.count == 0
    assert seen.of("fast", 6.0).latency.p50 == 2.0
    assert seen.overall(6.0).latency.p50 == 6.0


@pytest.mark.parametrize(
    ("event", "decisions"),
    [
        (Woke(), [Abort("c", 1), Settle("a", "c", Ending.CANCELLED)]),
        (Finished("c", 1, Outcome(Cause.TIMEOUT)), [Settle("a", "c", Ending.INFERENCE_TIMEOUT)]),
        (Finished("c", 1, Outcome(Cause.OK)), [Settle("a", "c", Ending.ANSWERED)]),
    ],
    ids=["left", "failed", "answered"],
)
def test_nothing_is_remembered_of_what_is_over(event: Event, decisions: Sequence[Decision]) -> None:
    """However a request ends, its entries go with it."""
    seen = Seen()
    asked = request("a")
    seen(Arrived(asked), [Join("a", "c"), Dispatch("c", 1, SLOW, "m", asked, 0.0)], 0.0)
    seen(Arrived(request("refused")), [Settle("refused", "", Ending.BACKPRESSURE)], 0.0)
    assert seen.open == 3
    seen(event, decisions, 1.0)
    assert seen.open == 0


def test_an_instance_that_is_gone_is_forgotten() -> None:
    """The rings of instances that come and go do not pile up."""
    seen = Seen()
    play(seen, "a", FAST, 0.0, 0.1, 1.0)
    play(seen, "b", SLOW, 0.0, 0.1, 1.0)
    seen(Reconfigured((SLOW,)), [], 2.0)
    assert seen.of("fast", 2.0).latency.count == 0
    assert seen.of("slow", 2.0).latency.count == 1


def test_a_ring_keeps_the_latest_and_only_what_is_not_too_old() -> None:
    """At most KEPT values, none of them older than the window; the time they reach back is told."""
    ring = Ring()
    for number in range(KEPT + 100):
        ring.note(float(number), float(number))
    now = float(KEPT + 99)
    assert ring.quantiles(now) == Quantiles(KEPT, KEPT - 1.0, 355.0, 586.0, 606.0)
    assert ring.quantiles(now + WINDOW - 9.5).count == 10
    assert ring.quantiles(now + 2 * WINDOW) == Quantiles(0, 0.0)


# ---------------------------------------------------------------------------------------------------------- demand


def view(name: str, *, healthy: bool = True, draining: bool = False, tier: Tier = Tier.LOCAL) -> InstanceView:
    """An instance as a snapshot shows it."""
    return InstanceView(
        id=name,
        engine=Engine.VLLM,
        tier=tier,
        models=("m",),
        healthy=healthy,
        draining=draining,
        breaker=BreakerState.CLOSED,
        breaker_opens_in=0.0,
        cooldown=0.0,
        in_flight=0,
        max_concurrent=8,
        unstarted_tokens=0,
        speed=0.0,
        reliability=1.0,
        closed_because="",
    )


class Load:
    """Calls that wait and run, as a test says."""

    def __init__(self) -> None:
        self.now = (0, 0)

    def __call__(self) -> tuple[int, int]:
        return self.now


def test_means_are_those_of_the_whole_time() -> None:
    """Between two steps nothing changes; a quiet minute counts as one, although nothing happens in it."""
    load = Load()
    meter = DemandMeter(load, 120.0)
    meter.begin(["a"], 0.0)
    load.now = (4, 8)
    meter(Woke(), [], 60.0)
    load.now = (0, 2)
    meter(Woke(), [], 90.0)
    demand = meter.demand([view("a")], 120.0)
    assert demand.seen == pytest.approx(120.0)
    assert demand.queued == pytest.approx(4 * 30 / 120)
    assert demand.running == pytest.approx((8 * 30 + 2 * 30) / 120)
    later = meter.demand([view("a")], 1_000.0)
    assert later.running == pytest.approx(2.0)
    assert later.queued == pytest.approx(0.0)
    assert later.seen == pytest.approx(120.0)


def test_asking_twice_says_the_same() -> None:
    """What is seen does not depend on who asks how often."""
    load = Load()
    meter = DemandMeter(load, 120.0)
    meter.begin(["a"], 0.0)
    load.now = (1, 3)
    meter(Woke(), [], 10.0)
    assert meter.demand([view("a")], 55.0) == meter.demand([view("a")], 55.0)


def test_refusals_for_want_of_room_are_counted_for_a_window() -> None:
    """A user's own bound (429) is no want of machines; a full queue and a queue timeout are."""
    meter = DemandMeter(Load(), 120.0)
    meter.begin(["a"], 0.0)
    full = Settle("a", "", Ending.BACKPRESSURE, errors.queue_full(1.0))
    own = Settle("b", "", Ending.BACKPRESSURE, errors.user_queue_full(5, 1.0))
    late = Settle("c", "c", Ending.QUEUE_TIMEOUT, errors.queue_timeout(60.0, 1.0))
    meter(Woke(), [full, own, late, Settle("d", "d", Ending.ANSWERED)], 10.0)
    assert meter.demand([view("a")], 100.0).refused == 2
    assert meter.demand([view("a")], 300.0).refused == 0


def test_waits_are_those_before_a_first_dispatch() -> None:
    """What a retry waits for is not a want of room."""
    meter = DemandMeter(Load(), 120.0)
    meter.begin(["a"], 0.0)
    first = Dispatch("c", 1, FAST, "m", request("a"), 3.0)
    meter(Woke(), [first, structs.replace(first, attempt=2, waited=50.0, cause=Cause.CONNECT)], 10.0)
    assert meter.demand([view("a")], 20.0).wait == 3.0


def test_the_fleet_is_what_can_be_scaled() -> None:
    """Local instances that are not being drained count, the healthy among them can be used; all, if none is local."""
    meter = DemandMeter(Load(), 120.0)
    meter.begin(["a"], 0.0)
    views = [view("a"), view("b", healthy=False), view("c", draining=True), view("d", tier=Tier.REMOTE)]
    demand = meter.demand(views, 10.0)
    assert (demand.instances, demand.usable, demand.places) == (2, 1, 8.0)
    assert meter.demand([view("d", tier=Tier.REMOTE)], 10.0).instances == 1
    assert meter.demand([], 10.0).usable == 0


def test_a_change_of_the_fleet_is_one_of_its_members() -> None:
    """A reload that changes a weight is no change; one that adds an instance is, and so is asking for more."""
    meter = DemandMeter(Load(), 120.0)
    meter.begin(["fast"], 0.0)
    meter(Reconfigured((replace(FAST, weight=2.0),)), [], 10.0)
    assert meter.demand([], 20.0).since_change > 1e6
    meter(Reconfigured((FAST, SLOW)), [], 30.0)
    meter.asked_for_more(35.0)
    demand = meter.demand([], 40.0)
    assert (demand.since_change, demand.since_up) == (10.0, 5.0)
