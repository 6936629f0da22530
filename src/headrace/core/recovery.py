"""After a failed attempt: try again, or give up, and what to say then.

An attempt is repeated when nothing of its answer reached the caller, attempts are left, the cause is of the kind
that another try can mend, and the retry budget has room. When some of it did, it may at most be *resumed*: at an
instance that can go on from the text so far, under the same bounds and one of its own. The budget (tower's and
Finagle's rule) ties retries to traffic: each first attempt pays in a fraction, each retry takes one out, so that
retries cannot multiply an outage. Another instance is tried at once; only when none is left does the call wait, for
the soonest one to come back and for a back-off with jitter that doubles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace import errors
from headrace.core.fallback import refused_for
from headrace.core.settings import RecoverySettings
from headrace.core.ticket import Call
from headrace.errors import Fault
from headrace.model import Cause, Ending, FallbackCause, Outcome

if TYPE_CHECKING:
    from random import Random

    from headrace.core.instance_state import InstanceState

_REFILL_SECONDS = 60.0
_DUST = 1e-9
"""What sums of fractions may be off by."""
_UNAVAILABLE, _GATEWAY_TIMEOUT = 503, 504
_NO_CAPACITY = frozenset({503, 529})
"""Statuses of an engine that is full; 429 is what it says to a caller who asks too often."""


class RetryBudget:
    """Retries that may still be made; never more than `cap`."""

    def __init__(self, ratio: float, reserve: float, cap: float = 100.0) -> None:
        self._ratio = ratio
        self._reserve = reserve
        self._cap = max(cap, reserve)
        self._left = reserve
        self._at = 0.0

    def pay_in(self) -> None:
        """A first attempt was made."""
        left = self._left + self._ratio
        self._left = left if left < self._cap else self._cap

    def take(self, now: float, spare: bool = False) -> bool:
        """Take one retry out; False when there is none. A quiet time refills up to the reserve.

        `spare`: only if half of the reserve stays for others.
        """
        if self._left < self._reserve:
            quiet = max(0.0, now - self._at)
            self._left = min(self._reserve, self._left + quiet * self._reserve / _REFILL_SECONDS)
        self._at = now
        least = 1.0 + (self._reserve / 2 if spare else 0.0)
        if self._left < least - _DUST:
            return False
        self._left -= 1.0
        return True


class Retry(NamedTuple):
    """Try again after `delay` seconds; 0: at once, at another instance."""

    delay: float


class Resume(NamedTuple):
    """Go on after `delay` seconds from what the callers have; 0: at once, at another instance."""

    delay: float


class GiveUp(NamedTuple):
    """No further attempt; tell this."""

    ending: Ending
    fault: Fault


class Recovery:
    """Decides after each failed attempt."""

    def __init__(self, settings: RecoverySettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self.budget = RetryBudget(settings.budget_ratio, settings.budget_reserve)

    def decide(self, call: Call, outcome: Outcome, now: float) -> Retry | Resume | GiveUp:
        """What to do after `outcome` ended an attempt of `call`, which is already counted in `call.failures`."""
        if not begun(call, outcome):
            delay = self._delay(call, outcome, call.choices, now)
            return _give_up(outcome, call.choices, now) if delay is None else Retry(delay)
        if self._settings.resume and outcome.resumable and call.resumes < self._settings.max_resumes:
            able = [state for state in call.choices if state.instance.resume]
            delay = self._delay(call, outcome, able, now)
            if delay is not None:
                return Resume(delay)
        fault = outcome.fault if outcome.committed else None
        return GiveUp(Ending.STREAM_BROKEN, fault or errors.stream_incomplete())

    def turns_for(self, call: Call, outcome: Outcome) -> FallbackCause | None:
        """Why another model may be asked after `outcome` ended an attempt; None: it may not."""
        if begun(call, outcome) or _spent(call):
            return None
        if outcome.cause is Cause.REJECTED:
            return refused_for(outcome)
        return FallbackCause.EXHAUSTED if self._mendable(outcome.cause) else None

    def _delay(self, call: Call, outcome: Outcome, members: Sequence[InstanceState], now: float) -> float | None:
        """Seconds until another attempt at one of `members`, taken from the budget; None: there is to be none."""
        cause = outcome.cause
        most = call.leader.request.max_attempts or self._settings.max_attempts
        if call.taken_over:
            most = 1
        if not self._mendable(cause) or call.failures >= most or _spent(call):
            return None
        if any(not state.shut(now) and state.instance.id not in call.tried for state in members):
            delay = 0.0
        elif cause is Cause.UPSTREAM_AUTH:
            return None
        else:
            soonest = returns_in(members, now)
            if soonest is None or soonest > self._settings.longest_wait:
                return None
            delay = soonest + self._backoff(call.failures)
        deadline = call.leader.request.deadline
        if deadline is not None and now + delay >= deadline:
            return None
        # An engine that dies under many streams must not use up what keeps new requests from failing.
        return delay if self.budget.take(now, spare=begun(call, outcome)) else None

    def _mendable(self, cause: Cause) -> bool:
        settings = self._settings
        match cause:
            case Cause.CONNECT:
                return settings.on_connect
            case Cause.TIMEOUT:
                return settings.on_timeout
            case Cause.SERVER_ERROR | Cause.BROKEN_STREAM | Cause.PROTOCOL:
                return settings.on_server_error
            case Cause.RATE_LIMITED | Cause.UPSTREAM_AUTH:
                return True
            case Cause.OK | Cause.REJECTED | Cause.ABORTED:
                return False

    def _backoff(self, failures: int) -> float:
        longest = min(self._settings.backoff_cap, self._settings.backoff * 2.0 ** (failures - 1))
        return longest * (0.5 + 0.5 * self._random.random())


def begun(call: Call, outcome: Outcome) -> bool:
    """The callers of `call`, whose attempt ended with `outcome`, have read a part of the answer."""
    return outcome.committed or call.resumes > 0


def _spent(call: Call) -> bool:
    """The caller allows no further attempt, at whatever model."""
    most = call.leader.request.max_attempts
    return most is not None and call.failures + call.spent >= most


def returns_in(members: Sequence[InstanceState], now: float) -> float | None:
    """Seconds until some of the instances may be tried; None when only an event can bring one back."""
    waits = [wait for state in members if (wait := state.returns_in(now)) is not None]
    return min(waits) if waits else None


def _give_up(outcome: Outcome, members: Sequence[InstanceState], now: float) -> GiveUp:
    cause = outcome.cause
    if cause is Cause.REJECTED:
        return GiveUp(Ending.REJECTED, outcome.fault or errors.invalid_request("The engine refused the request."))
    match cause:
        case Cause.RATE_LIMITED:
            wait = returns_in(members, now) or outcome.retry_after or 1.0
            full = outcome.status in _NO_CAPACITY
            told = errors.upstream_unavailable(wait) if full else errors.engines_limited(wait)
            return GiveUp(Ending.INFERENCE_FAILURE, told)
        case Cause.TIMEOUT:
            return GiveUp(Ending.INFERENCE_TIMEOUT, outcome.fault or errors.upstream_timeout())
        case Cause.SERVER_ERROR if outcome.status == _GATEWAY_TIMEOUT:
            return GiveUp(Ending.INFERENCE_TIMEOUT, errors.upstream_timeout())
        case Cause.SERVER_ERROR if outcome.status == _UNAVAILABLE and outcome.fault is None:
            return GiveUp(Ending.INFERENCE_FAILURE, errors.upstream_unavailable(returns_in(members, now) or 1.0))
        case Cause.UPSTREAM_AUTH:
            return GiveUp(Ending.INFERENCE_FAILURE, outcome.fault or errors.upstream_auth())
        case Cause.BROKEN_STREAM:
            return GiveUp(Ending.STREAM_BROKEN, outcome.fault or errors.upstream_error())
        case _:
            return GiveUp(Ending.INFERENCE_FAILURE, outcome.fault or errors.upstream_error())


class Blocked(NamedTuple):
    """Why a request need not even queue."""

    ending: Ending
    fault: Fault


def blocked(members: Sequence[InstanceState], longest_wait: float, now: float) -> Blocked | None:
    """Why none of the instances will take anything soon; None when waiting makes sense.

    Down everywhere, every breaker open, or all cooling down for longer than a request waits: told at once, so that
    clients wait where it costs nothing. It is a matter of rates only if every engine said so, with a 429.
    """
    for state in members:
        if not state.shut(now):
            return None
    up = [state for state in members if state.healthy and not state.draining]
    if not up:
        return Blocked(Ending.NO_INSTANCE, errors.no_instance(10.0))
    waits = [state.returns_in(now) or 0.0 for state in up]
    soonest = min(waits)
    if soonest <= 0.0:
        return None
    if all(state.breaker.opens_in(now) > 0.0 for state in up):
        return Blocked(Ending.CIRCUIT_OPEN, errors.circuit_open(soonest))
    if soonest <= longest_wait:
        return None
    if all(state.cooldown_because == Cause.RATE_LIMITED and state.cooldown_status not in _NO_CAPACITY for state in up):
        return Blocked(Ending.RATE_LIMITED, errors.engines_limited(soonest))
    return Blocked(Ending.NO_INSTANCE, errors.upstream_unavailable(soonest))
