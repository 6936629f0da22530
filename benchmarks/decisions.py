"""What one decision costs, alone and under a backlog, and how that grows.

The scheduler is driven as the gateway drives it, on a clock of its own: under a backlog each round ends the oldest
attempt (which sends the next one) and lets a new request arrive, so the backlog stays as long as it is. Times are the
deciding thread's own CPU time: the scheduler never waits, and other processes do not count. The garbage collector is
set as `headrace serve` sets it.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Sequence
from random import Random

from benchmarks.report import Report, percentile
from headrace.core.scheduler import Scheduler
from headrace.core.settings import QueueSettings, Settings
from headrace.model import (
    AnswerForm,
    Arrived,
    Cause,
    Decision,
    Dispatch,
    Event,
    Finished,
    Flow,
    Instance,
    Outcome,
    Request,
    ServiceClass,
    Started,
    Usage,
)
from headrace.server.serving import spare_the_collector

SIZES = ((100, 1_000), (1_000, 10_000), (10_000, 100_000))
"""Backlogged users, requests queued."""
SLOTS = 64
_MICRO = 1e-3
"""Microseconds in a nanosecond."""


def run(quick: bool = False) -> list[Report]:
    """Measure everything; `quick` takes fewer rounds."""
    rounds = 2_000 if quick else 20_000
    report = Report("Decisions", ("what", "p50", "p99", "mean", "aim"))

    def add(name: str, what: str, times: Sequence[float], aim: str = "") -> None:
        values = {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99), "mean": sum(times) / len(times)}
        report.rows.append((what, *(f"{value:.1f} µs" for value in values.values()), aim))
        report.numbers.update({f"{name}_{key}": value for key, value in values.items()})

    add("cycle", "a request that waits for nothing: arrive, start, finish", alone(rounds // 2), "< 20 µs")
    for users, queued in SIZES:
        arrive, finish = backlogged(users, queued, rounds)
        crowd = f"{users:,} users, {queued:,} queued"
        add(f"arrive_{users}", f"{crowd}: arrive", arrive)
        add(f"finish_{users}", f"{crowd}: finish and send the next", finish)
        add(f"decision_{users}", f"{crowd}: both", [*arrive, *finish], "p99 < 50 µs")
    few, many = SIZES[0][0], SIZES[-1][0]
    growth = report.numbers[f"decision_{many}_p50"] / report.numbers[f"decision_{few}_p50"]
    report.numbers["growth"] = growth
    report.notes.append(f"{many // few} times the users and requests cost {growth:.2f} times the time")
    return [report]


def alone(rounds: int) -> list[float]:
    """Microseconds of the three decisions of a request that finds nothing waiting."""
    scheduler, times, now = _scheduler(), list[float](), 0.0
    for number in range(rounds):
        now += 0.01
        asked = Arrived(_request(f"r{number}", f"user-{number % 50}"))
        orders, spent = _timed(scheduler, asked, now)
        sent = _sent(orders)[0]
        spent += _timed(scheduler, Started(sent.call, sent.attempt), now)[1]
        ended = Finished(sent.call, sent.attempt, Outcome(Cause.OK, Usage(200, 60)))
        times.append(spent + _timed(scheduler, ended, now)[1])
    return times


def backlogged(users: int, queued: int, rounds: int) -> tuple[list[float], list[float]]:
    """Microseconds of each arrival, and of each end that sends the next one, with so much waiting all the time."""
    scheduler, chance, now = _scheduler(), Random(3), 0.0
    usual = gc.get_threshold()
    running = deque[Dispatch]()
    for number in range(queued + SLOTS):
        running += _sent(scheduler.handle(Arrived(_request(f"q{number}", f"user-{number % users}")), now))
    spare_the_collector()
    arrive, finish = list[float](), list[float]()
    for number in range(rounds):
        now += 0.01
        oldest = running.popleft()
        ended = Finished(oldest.call, oldest.attempt, Outcome(Cause.OK, Usage(200, chance.randrange(400))))
        orders, spent = _timed(scheduler, ended, now)
        running += _sent(orders)
        finish.append(spent)
        asked = Arrived(_request(f"r{number}", f"user-{chance.randrange(users)}"))
        arrive.append(_timed(scheduler, asked, now)[1])
    gc.unfreeze()
    gc.set_threshold(*usual)
    return arrive, finish


def _timed(scheduler: Scheduler, event: Event, now: float) -> tuple[list[Decision], float]:
    begun = time.thread_time_ns()
    orders = scheduler.handle(event, now)
    return orders, (time.thread_time_ns() - begun) * _MICRO


def _sent(orders: Sequence[Decision]) -> list[Dispatch]:
    return [order for order in orders if isinstance(order, Dispatch)]


def _scheduler() -> Scheduler:
    queue = QueueSettings(size=10**6, per_user=10**6, timeouts=dict.fromkeys(ServiceClass, 1e6))
    return Scheduler(Settings(queue=queue), [Instance(id="a", max_concurrent=SLOTS)], Random(1))


def _request(name: str, user: str) -> Request:
    return Request(id=name, flow=Flow(user=user), model="m", prompt_tokens=200, form=AnswerForm.STREAM)
