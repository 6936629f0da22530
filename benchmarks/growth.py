"""How the cost of a request grows with what there is: queued requests, users, instances, open streams.

The scheduler is driven on a clock of its own, in the deciding thread's own CPU time. One thing grows ten times at a
time, the others stay; what matters are the ratios. An instance is asked for room only when something happened at it,
and only those with room are looked at when one is chosen; everything else costs at most its logarithm.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from random import Random
from statistics import median

from benchmarks.report import Report
from headrace.core.scheduler import Scheduler
from headrace.core.settings import QueueSettings, Settings
from headrace.model import (
    AnswerForm,
    Arrived,
    Cause,
    Dispatch,
    Event,
    Finished,
    Flow,
    Instance,
    Outcome,
    Progressed,
    Request,
    ServiceClass,
    Started,
    Usage,
)

SIZES = (10, 100, 1_000, 10_000)
INSTANCES = (10, 100, 1_000)
_ROUNDS = 600


def run(quick: bool = False) -> list[Report]:
    """Measure every growth; `quick` leaves out the largest."""
    rounds = _ROUNDS // 3 if quick else _ROUNDS
    sizes = SIZES[:-1] if quick else SIZES
    report = Report("Growth", ("what grows", *(f"{size:,}" for size in sizes), "largest to smallest"))

    def add(name: str, costs: dict[int, float]) -> None:
        smallest, largest = min(costs), max(costs)
        ratio = costs[largest] / costs[smallest]
        shown = [f"{costs[size]:.1f} µs" if size in costs else "" for size in sizes]
        report.rows.append((name, *shown, f"{ratio:.2f}"))
        report.numbers[name.replace(" ", "_")] = ratio

    add("queued requests", {size: queued(size, rounds) for size in sizes})
    add("users", {size: users(size, rounds) for size in sizes})
    add("open streams", {size: streams(size, rounds) for size in sizes})
    add("instances", {size: instances(size, rounds) for size in INSTANCES if size <= max(sizes)})
    report.notes.append(
        "A request is its arrival, its first token, a report of progress and its end, with what follows."
    )
    return [report]


def queued(size: int, rounds: int) -> float:
    """Microseconds of a request while so many of ten users wait."""
    return _cycle(_scheduler(1, 16), size, 10, rounds)


def users(size: int, rounds: int) -> float:
    """Microseconds of a request while one of each of so many users waits."""
    return _cycle(_scheduler(1, 16), size, size, rounds)


def streams(size: int, rounds: int) -> float:
    """Microseconds of a request while so many streams run and nothing waits."""
    return _cycle(_scheduler(1, size + 16), 0, 10, rounds, running=size)


def instances(size: int, rounds: int) -> float:
    """Microseconds of a request before so many instances, with ten times as many waiting."""
    return _cycle(_scheduler(size, 4), 10 * size, 10, rounds)


def _cycle(scheduler: Scheduler, waiting: int, users: int, rounds: int, running: int = 0) -> float:
    """The median cost of a round in which one request comes, one begins, goes on and ends, in microseconds."""
    chance, now, number = Random(5), 0.0, 0
    under_way = deque[Dispatch]()

    def arrive() -> list[Dispatch]:
        nonlocal number
        number += 1
        request = Request(
            id=f"r{number}",
            flow=Flow(user=f"user-{chance.randrange(users)}"),
            model="m",
            prompt_tokens=200,
            form=AnswerForm.STREAM,
        )
        orders = scheduler.handle(Arrived(request), now)
        return [order for order in orders if isinstance(order, Dispatch)]

    for _ in range(waiting + scheduler.snapshot(0.0).instances[0].max_concurrent * bool(waiting) + running):
        under_way += arrive()
    gc.collect()
    gc.freeze()
    costs: list[float] = []
    for _ in range(rounds):
        now += 0.01
        begun = time.thread_time_ns()
        under_way += arrive()
        oldest = under_way.popleft()
        facts: tuple[Event, ...] = (
            Started(oldest.call, oldest.attempt),
            Progressed(oldest.call, oldest.attempt, 32),
            Finished(oldest.call, oldest.attempt, Outcome(Cause.OK, Usage(200, 60))),
        )
        for fact in facts:
            orders = scheduler.handle(fact, now)
            under_way += [order for order in orders if isinstance(order, Dispatch)]
        costs.append((time.thread_time_ns() - begun) * 1e-3)
    gc.unfreeze()
    return median(costs)


def _scheduler(count: int, places: int) -> Scheduler:
    queue = QueueSettings(size=10**6, per_user=10**6, timeouts=dict.fromkeys(ServiceClass, 1e6))
    pool = [Instance(id=f"i{number}", max_concurrent=places) for number in range(count)]
    return Scheduler(Settings(queue=queue), pool, Random(1))
