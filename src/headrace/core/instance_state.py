"""What is known of one instance: breaker, cooldown, health, speed, reliability, gate, and whether it just came back.

Every attempt feeds its own instance, streams included. Outcomes are judged three ways:

* success closes the breaker's count and ends the cooldown, except for what the engine itself asked for;
* failure (connect, timeout, 5xx, broken stream) counts for the breaker and starts a cooldown;
* neutral says nothing about the instance, but always gives its place and its probe lease back. 429 and overload
  are neutral for the breaker and start a cooldown as long as the engine asked for (bounded).

Speed (output tokens per second of an attempt) and reliability are exponentially weighted means, alpha 0.3.
Reliability moves toward 1 on success and toward 1 - p on a penalty p; an unknown speed reads as the average of its
peers, so that a cold instance is not starved.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from headrace.core.affinity import PrefixIndex
from headrace.core.breaker import Breaker
from headrace.core.gate import Gate
from headrace.core.naming import match
from headrace.core.place import Place
from headrace.core.ramp import Ramp
from headrace.core.settings import RecoverySettings, Settings
from headrace.model import (
    AnswerForm,
    BreakerState,
    Cause,
    EngineReport,
    Instance,
    InstanceView,
    Outcome,
    OutcomeKind,
    Probed,
    Request,
    ServiceClass,
    Usage,
)

if TYPE_CHECKING:
    from headrace.core.pool import Pool

_OK: Final = Cause.OK
_STREAM: Final = AnswerForm.STREAM
_ALPHA = 0.3
_PENALTY = {
    Cause.TIMEOUT: 0.5,
    Cause.CONNECT: 0.5,
    Cause.SERVER_ERROR: 1.0,
    Cause.PROTOCOL: 1.0,
    Cause.RATE_LIMITED: 0.7,
    Cause.BROKEN_STREAM: 0.5,
}
_SLOW_PENALTY = 0.3
_OVERLOAD = frozenset({Cause.RATE_LIMITED, Cause.TIMEOUT})
MAX_NAMES = 4096
"""Model names remembered with what they stand for; names come from callers, so the memory of them is bounded."""


class InstanceState:
    """The moving state of one instance."""

    __slots__ = (
        "_slow_start",
        "_unhealthy_after",
        "_upstream",
        "asked_until",
        "breaker",
        "cooldown_because",
        "cooldown_since",
        "cooldown_status",
        "cooldown_until",
        "down_since",
        "draining",
        "gate",
        "healthy",
        "index",
        "instance",
        "last_pick",
        "load",
        "passed_over",
        "pools",
        "ramp",
        "reliability",
        "speed",
        "strikes",
    )

    def __init__(self, instance: Instance, settings: Settings) -> None:
        self.instance = instance
        self.gate = Gate(instance, settings)
        self.index = PrefixIndex()
        self.breaker = Breaker(
            settings.breaker.threshold, settings.breaker.recovery, max_backoff=settings.breaker.max_backoff
        )
        self.healthy = True
        self.down_since = inf
        """Since when it has been down; infinite: it is not."""
        self.draining = False
        self._unhealthy_after = settings.health.unhealthy_after
        self.strikes = 0
        self.cooldown_until = 0.0
        self.asked_until = 0.0
        """Until when the engine itself asked to be left alone (429, overload, any `Retry-After`)."""
        self.cooldown_since = 0.0
        self.cooldown_because = ""
        """The cause of the attempt that began the last cooldown."""
        self.cooldown_status: int | None = None
        """What the engine answered to it."""
        self._slow_start = settings.routing.slow_start
        self.ramp: Ramp | None = None
        """Set when it comes back (see `core.ramp`); `Pool.holds_back` says whether it matters."""
        self.speed = 0.0
        self.reliability = 1.0
        self.load = 0.0
        """Sum of the weights of the requests it is working on."""
        self.last_pick = 0
        self.passed_over = 0
        """How often another was preferred to it since it was last picked."""
        self._upstream: dict[str, str] = {}
        self.pools: list[Pool] = []
        """The pools it is a member of."""

    def reshape(self, instance: Instance) -> None:
        """Take new settings of the same instance; what was learned stays."""
        self.instance = instance
        self.gate.reshape(instance)
        self._upstream.clear()

    def upstream(self, model: str) -> str:
        """The name to send to the engine for `model`."""
        name = self._upstream.get(model)
        if name is None:
            if len(self._upstream) >= MAX_NAMES:
                self._upstream.clear()
            name = self._upstream[model] = match(self.instance, model) or model
        return name

    def shut(self, now: float) -> str:
        """Why nothing at all may be sent to it now, or ""; of breaker and cooldown the one that lasts longer."""
        if self.draining:
            return "draining"
        if not self.healthy:
            return "down"
        if self.breaker.opened and not self.breaker.allows(now) and self.cooldown_until <= max(now, self.breaker.until):
            return "breaker"
        return "cooldown" if self.cooldown_until > now else ""

    def closed(self, tokens: int, now: float, service_class: ServiceClass = ServiceClass.NORMAL) -> str:
        """Why a request with so many uncached prompt tokens may not be sent now, or ""."""
        return self.shut(now) or self.gate.shut(tokens, now, service_class)

    def uncached(self, request: Request) -> int:
        """Prompt tokens of `request` that the engine has to read, as far as we know."""
        if not request.prefix:
            return request.prompt_tokens
        return max(1, request.prompt_tokens - self.index.match(request.prefix) * request.prefix_block)

    def returns_in(self, now: float) -> float | None:
        """Seconds until a shut instance may be tried again; None when only an event can bring it back."""
        if self.draining or not self.healthy:
            return None
        wait = max(0.0, self.cooldown_until - now)
        return wait if self.breaker.allows(now) else max(wait, self.breaker.opens_in(now))

    def price_ratio(self) -> float | None:
        """What an output token costs this machine in prompt tokens, as it has shown; None while unknown."""
        decode, prefill = self.gate.pace.decode_seconds, self.gate.prefill_seconds
        if not decode or not self.gate.prefill_known:
            return None
        return min(max(decode / prefill, 1.0), 8.0)

    def opens_at(self, now: float) -> float | None:
        """When it may take more without any event: it comes back, or its window lapses. None: only an event helps."""
        if self.shut(now):
            if self.draining or not self.healthy:
                return None
            back = max(now, self.cooldown_until)
            return back if self.breaker.allows(now) else max(back, self.breaker.until)
        at = self.gate.opens_at(now)
        if self.ramping(now) and self.ramp is not None:
            grows = self.ramp.exceeds(self.gate.in_flight, self.gate.limit)
            if now < grows < inf and (at is None or grows < at):
                return grows
        return at

    # ------------------------------------------------------------------ coming back

    def comes_back(self, at: float) -> None:
        """From `at` on it can be used again, and gets little at first."""
        self.ramp = Ramp(at, self._slow_start) if self._slow_start else None

    def ramping(self, now: float) -> bool:
        """It has come back and may not yet have as many requests as else."""
        return self.ramp is not None and now < self.ramp.ends

    def drain(self, draining: bool, now: float) -> None:
        """Give it no new work from now on, or work again."""
        if self.draining and not draining:
            self.comes_back(now)
        self.draining = draining

    def mend(self, now: float) -> None:
        """Close the breaker and end the cooldown, whatever they were for."""
        if self.breaker.state(now) is not BreakerState.CLOSED or self.cooldown_until > now:
            self.comes_back(now)
        self.breaker.reset()
        self.cooldown_until = self.asked_until = 0.0

    def rest(self, seconds: float, now: float) -> None:
        """Leave it alone, as an earlier process had found better."""
        self.cooldown_until = self.asked_until = now + seconds
        self.cooldown_since, self.cooldown_because = now, "recalled"
        self.comes_back(self.cooldown_until)

    def acquire(
        self,
        request: Request,
        load: float,
        streamed: bool,
        now: float,
        as_class: ServiceClass | None = None,
        carried: int = 0,
    ) -> Place:
        """Take a place for one attempt; `closed` was "" just before. `as_class`: None is the request's own.

        `carried`: tokens of an answer that is taken up again; they are read like a prompt.
        """
        ramp, prefix, tokens = self.ramp, request.prefix, request.prompt_tokens
        if ramp is not None and now >= ramp.ends:
            self.ramp = None
        permit = self.breaker.acquire(now)
        unread = (self.uncached(request) if prefix else tokens) + carried
        place = self.gate.enter(unread, as_class or request.flow.service_class, streamed, now, unread == tokens)
        place.state, place.request, place.permit, place.load, place.carried = self, request, permit, load, carried
        if prefix:
            self.index.add(prefix, request.prefix_block)
        self.load += load
        return place

    def started(self, place: Place, now: float) -> None:
        """The attempt's first content is here."""
        if place.present and place.first is None:
            place.first = now
            self.gate.started(place, now)

    def progressed(self, place: Place, tokens: int, now: float) -> None:
        """The attempt made so many more tokens."""
        if place.present and place.first is not None:
            self.gate.progressed(place, tokens, now)

    def release(self, place: Place, outcome: Outcome, settings: RecoverySettings, now: float) -> None:
        """The attempt ended: give everything back and judge. A second call changes nothing."""
        if not place.present:
            return
        gate, request, cause = self.gate, place.request, outcome.cause
        answered = cause is _OK
        gate.leave(place, now, outcome.usage if answered and not place.carried else None, answered)
        if request.prefix and (answered or place.first is not None):
            self.index.add(request.prefix, request.prefix_block)
        self.load = max(0.0, self.load - place.load) if gate.in_flight else 0.0
        if answered:
            self._answered(place, outcome.usage, settings, now)
        else:
            self._failed(place, outcome, settings, now)

    def probed(self, event: Probed, now: float) -> bool:
        """Count a health check; True when by it the instance came up, went down, or may be probed."""
        before, relented = self.healthy, False
        if event.healthy:
            relented = bool(self.strikes) and self.breaker.relent(now)
            self.strikes = 0
            if not self.healthy:
                self.healthy = True
                self.down_since = inf
                self.comes_back(now)
        elif not event.busy:
            self.strikes += self._unhealthy_after if event.definite else 1
            if self.healthy and self.strikes >= self._unhealthy_after:
                self.healthy = False
                self.down_since = now
        return relented or before != self.healthy

    def reported(self, report: EngineReport | None, now: float) -> None:
        """Take what the engine's metrics say; None: unknown from now on."""
        self.gate.reported(report, now)
        if report is not None and report.kv_tokens:
            self.index.tokens = report.kv_tokens

    def view(self, now: float) -> InstanceView:
        """What can be seen of it."""
        engine = self.gate.engine
        report = engine.report
        return InstanceView(
            id=self.instance.id,
            engine=self.instance.engine,
            tier=self.instance.tier,
            models=tuple(model.name for model in self.instance.models),
            healthy=self.healthy,
            draining=self.draining,
            breaker=self.breaker.state(now),
            breaker_opens_in=self.breaker.opens_in(now),
            cooldown=max(0.0, self.cooldown_until - now),
            in_flight=self.gate.in_flight,
            max_concurrent=self.gate.limit,
            unstarted_tokens=self.gate.unstarted,
            speed=self.speed,
            reliability=self.reliability,
            closed_because=self.closed(1, now) or self._held_back(now),
            metrics_age=None if engine.known_at is None else now - engine.known_at,
            metrics_stale=engine.stale(now),
            engine_waiting=None if report is None else report.waiting,
            engine_kv=None if report is None else report.kv,
            closed_seconds=self.gate.shut_times.seconds(now),
            load=self.load,
            breaker_changes=dict(self.breaker.changes),
            breaker_for=now - self.breaker.opened_at if self.breaker.state(now) is not BreakerState.CLOSED else 0.0,
            cooldown_because=self.cooldown_because if self.cooldown_until > now else "",
            cooldown_for=now - self.cooldown_since if self.cooldown_until > now else 0.0,
            ramp=self.ramp.limit(self.gate.limit, now) if self.ramp is not None and self.ramping(now) else None,
        )

    def _held_back(self, now: float) -> str:
        return "slow_start" if any(pool.holds_back(self, now) for pool in self.pools) else ""

    def _answered(self, place: Place, usage: Usage | None, settings: RecoverySettings, now: float) -> None:
        """It answered: what that shows of it.

        A success that closes the breaker brings it back; one beside a failure shows that it was not away at all.
        """
        breaker = self.breaker
        probe = place.permit.probe and breaker.opened
        breaker.success(place.permit)
        if probe:
            self.comes_back(now)
        elif self.cooldown_until > now and self.cooldown_until > self.asked_until:
            self.ramp = None
        elif self.ramp is not None:
            self.ramp.answered(place.entered)
        self.cooldown_until = self.asked_until
        took = now - place.entered
        slow = took > settings.slow_answer
        if place.first is not None and place.request.form is _STREAM:
            slow = slow or place.first - place.entered > settings.slow_first_token
        self.reliability += _ALPHA * (1.0 - _SLOW_PENALTY * slow - self.reliability)
        made = 0 if usage is None else usage.completion - place.carried
        if made > 0 and took > 0:
            seen = made / took
            self.speed = seen if self.speed == 0.0 else self.speed + _ALPHA * (seen - self.speed)

    def _failed(self, place: Place, outcome: Outcome, settings: RecoverySettings, now: float) -> None:
        """It speaks against it, or says nothing about it."""
        cause = outcome.cause
        if cause in _OVERLOAD:
            self.gate.refused(now)
        if outcome.kind is OutcomeKind.FAILURE:
            self.breaker.failure(now, place.permit)
            self._cool(outcome, outcome.retry_after, settings, now)
        else:
            self.breaker.neutral(place.permit)
            if cause is Cause.RATE_LIMITED:
                self._cool(outcome, outcome.retry_after or settings.cooldown, settings, now)
        penalty = _PENALTY.get(cause)
        if penalty is not None:
            self.reliability += _ALPHA * ((1.0 - penalty) - self.reliability)

    def _cool(self, outcome: Outcome, asked: float | None, settings: RecoverySettings, now: float) -> None:
        if self.cooldown_until <= now:
            self.cooldown_since = now
        self.cooldown_because, self.cooldown_status = outcome.cause.value, outcome.status
        wait = settings.cooldown
        if asked is not None:
            wait = max(wait, min(asked, settings.cooldown_cap))
            self.asked_until = max(self.asked_until, now + wait)
        self.cooldown_until = max(self.cooldown_until, now + wait)
        self.comes_back(self.cooldown_until)
