"""What a run came to: plain values, ready to be shown, plotted or written as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.bench.fairness import jain_max_min
from headrace.bench.patterns import User
from headrace.bench.run import Alone, Plan
from headrace.bench.tally import UNFINISHED, Tally
from headrace.yardsticks import jain, percentile

BACKLOGGED = 0.5
"""A user who waited for something at least this part of the time wanted more than they got."""
MOST_POINTS = 2000
"""Most single waits of one user that a report carries for plots; evenly chosen from more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution of seconds. From `floor` on, values are lower bounds: some requests were still waiting."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    longest: float
    floor: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserReport:
    """What one user experienced. Times are seconds, service is weighted tokens."""

    name: str
    pattern: str
    asked: int
    """Requests that were sent."""
    served: int
    """Complete answers."""
    unfinished: int
    """Still under way when the run ended."""
    held: int
    """Due, but never sent: the user had as many under way as they may."""
    errors: Mapping[str, int]
    """Refused and failed requests by status, with the error's code, or by what broke."""
    ttft: Spread | None
    """Due to first content."""
    tpot: Spread | None
    """Between two tokens, the mean of each answer."""
    whole: Spread | None
    """Due to the last byte."""
    queued: Spread | None
    """In the gateway's queue; None: it does not say."""
    requests_per_second: float
    output_tokens_per_second: float
    prompt_tokens: int
    output_tokens: int
    estimated: bool
    """Tokens of some answers were counted by chunks and words, since no usage was reported."""
    service: float
    share: float
    """Of the service all users got."""
    backlogged: float
    """The part of the time in which a request of this user waited for its first content."""
    wanted_more: bool
    waits: tuple[tuple[float, float], ...]
    """When requests were due, and how long after it the first content came."""
    curve: tuple[float, ...]
    """Service received in equal steps of the planned duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run's result."""

    url: str
    model: str
    started: float
    """Wall time in seconds."""
    duration: float
    """Seconds that were planned..."""
    window: float
    """...and measured."""
    interrupted: bool
    seed: int
    alone: Alone | None
    """One request before all others, in seconds."""
    users: tuple[UserReport, ...]
    jain: float | None
    """Over the service of the users that wanted more; None for fewer than two."""
    jain_max_min: float | None
    """Over (service / max-min fair share) of all users."""

    @property
    def served(self) -> int:
        """Complete answers of all users."""
        return sum(user.served for user in self.users)

    def to_json(self) -> bytes:
        """One JSON object with these names, indented."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def report(
    plan: Plan,
    tallies: Mapping[str, Tally],
    *,
    window: float,
    url: str,
    started: float,
    interrupted: bool = False,
    alone: Alone | None = None,
) -> Report:
    """Sum up what was counted in a window of so many seconds."""
    received = {name: tally.service for name, tally in tallies.items()}
    total = sum(received.values())
    users = tuple(_user(user, tallies[user.name], window, total) for user in plan.users)
    hungry = [user.service for user in users if user.wanted_more]
    demands = {user.name: _demand(user, tallies[user.name], window) for user in plan.users}
    return Report(
        url=url,
        model=plan.model,
        started=started,
        duration=plan.duration,
        window=window,
        interrupted=interrupted,
        seed=plan.seed,
        alone=alone,
        users=users,
        jain=jain(hungry),
        jain_max_min=jain_max_min(received, demands),
    )


def spread(values: Iterable[float], censored: Iterable[float] = ()) -> Spread | None:
    """The distribution of the values; those that are censored were at least so long. None: there is nothing."""
    open_ended = list(censored)
    ordered = sorted([*values, *open_ended])
    if not ordered:
        return None
    return Spread(
        count=len(ordered),
        mean=sum(ordered) / len(ordered),
        p50=percentile(ordered, 0.5),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        longest=ordered[-1],
        floor=min(open_ended, default=None),
    )


def wanted_more(user: User, tally: Tally, now: float) -> bool:
    """Whether a user had something waiting for most of the time that they took part."""
    return tally.backlogged(now, user.at) >= BACKLOGGED


def _demand(user: User, tally: Tally, window: float) -> float:
    """What a user would have taken, in service; without end for callers who ask again as soon as they are answered."""
    if not user.limited and wanted_more(user, tally, window):
        return float("inf")
    each = tally.wanted_service / tally.asked if tally.asked else 0.0
    return max(tally.service, tally.wanted_service + each * tally.held)


def _user(user: User, tally: Tally, window: float, total: float) -> UserReport:
    samples, per_second = tally.samples, 1 / window if window > 0 else 0.0
    errors = {name: count for name, count in tally.results.most_common() if name not in ("served", UNFINISHED)}
    return UserReport(
        name=user.name,
        pattern=str(user),
        asked=tally.asked,
        served=tally.served,
        unfinished=tally.results[UNFINISHED],
        held=tally.held,
        errors=errors,
        ttft=spread(samples.first, [*samples.censored, *_never_sent(user, tally, window)]),
        tpot=spread(samples.token),
        whole=spread(samples.whole, samples.unended),
        queued=spread(samples.queued),
        requests_per_second=tally.served_inside * per_second,
        output_tokens_per_second=tally.output_tokens * per_second,
        prompt_tokens=tally.prompt_tokens,
        output_tokens=tally.output_tokens,
        estimated=tally.estimated,
        service=tally.service,
        share=tally.service / total if total else 0.0,
        backlogged=tally.backlogged(window, user.at),
        wanted_more=wanted_more(user, tally, window),
        waits=_points(samples.due, samples.first),
        curve=tuple(tally.curve),
    )


def _never_sent(user: User, tally: Tally, window: float) -> list[float]:
    """How long those of a burst had waited for their turn that never came."""
    return [window - user.at] * tally.held if user.burst is not None else []


def _points(due: Sequence[float], waits: Sequence[float]) -> tuple[tuple[float, float], ...]:
    every = -(-len(due) // MOST_POINTS) or 1
    return tuple(zip(due[::every], waits[::every], strict=True))
