"""Health checks: is an instance there, and does it answer?

Light: a GET that costs no tokens, each `interval` (jittered, so that replicas do not beat in step), and soon after an
attempt has failed. Deep: every
`deep_every` light checks, one token is really generated, and its result counts; after a failed one the next are deep,
too, until one succeeds, so that an engine which answers everything but requests is found out. Three failures in a row
mean down, one success means up; 429 is not down; a 503 is the engine's own word that it is not ready. An engine that
is silent to its check while bytes still flow from it is busy, not dead. Checks go around the scheduler: they take no
slot and are nobody's traffic.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import msgspec
import structlog

from headrace.model import Cause, Engine, Instance, Probed
from headrace.runtime.attempts import Pulse
from headrace.runtime.client import Client
from headrace.runtime.failures import Failure, UpstreamFailed
from headrace.runtime.watches import Watches
from headrace.wire.adapters import EngineRequest, adapter_for
from headrace.wire.openai import parse

_ANSWER_LIMIT = 1024 * 1024
_LIFE_SIGNS = 2.0
"""For so many checks' time the last byte of an answer outweighs a check without one."""
_SHORTEST = 0.8
"""Intervals are drawn from this part of theirs to as much more."""
_DOWN = "down"
_GAP = 1.0
"""Attempts that fail hurry the next check, but checks are at least so many seconds apart."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """How often and how patiently; seconds."""

    interval: float = 10.0
    timeout: float = 5.0
    deep_every: int = 30
    """Every how many checks one is deep; 0: never."""
    deep_timeout: float = 30.0


class Checked(NamedTuple):
    """What one check found."""

    result: Probed
    reason: str = ""
    """What is wrong, for operators; names no host, path or key. Empty where nothing is."""


@dataclass(slots=True)
class _Life:
    """What was last heard of an instance."""

    reads: int
    at: float = -math.inf


class Prober:
    """Checks instances until it is closed.

    Args:
        step: told the result of each check.
        pulse: the signs of life of an instance, by its id.
        random: jitter.
    """

    def __init__(
        self,
        step: Callable[[Probed], None],
        upstream: Client,
        secrets: Mapping[str, str],
        settings: ProbeSettings,
        pulse: Callable[[str], Pulse],
        random: Random,
    ) -> None:
        self._step = step
        self._upstream = upstream
        self._secrets = secrets
        self._settings = settings
        self._pulse = pulse
        self._random = random
        self._watches = Watches(self._keep_checking)
        self._wrong: dict[str, str] = {}
        """By instance, what the log says is wrong with it."""
        self._life: dict[str, _Life] = {}

    def watch(self, instances: Iterable[Instance]) -> None:
        """Check exactly these from now on; each at once, then at every interval."""
        for gone in self._watches.keep(i for i in instances if i.engine not in (Engine.ECHO, Engine.WORKER)):
            self._life.pop(gone, None)
            self._wrong.pop(gone, None)

    async def close(self) -> None:
        """Stop all checks."""
        await self._watches.close()

    async def _keep_checking(self, instance: Instance) -> None:
        every, count, failed_deep = self._settings.deep_every, 0, False
        alarm, clock = asyncio.Event(), asyncio.get_running_loop().time
        well, counted = True, -math.inf
        self._pulse(instance.id).alarm = alarm.set
        while True:
            deep = failed_deep or (every > 0 and count > 0 and count % every == 0)
            try:
                result, reason = await self.check(instance, deep=deep)
                failed = not (result.healthy or result.busy)
                failed_deep = deep and failed
                # Three that failed within a second are one failure: a hurried check tells of a change only.
                if not failed or well or clock() - counted >= _SHORTEST * self._settings.interval:
                    well, counted = not failed, clock()
                    self._note(result, reason)
                    self._step(result)
            except Exception:  # noqa: BLE001 - the task's outer edge: one check that goes wrong does not end them all
                _log.exception("health check failed", instance=instance.id)
            count += 1
            await self._pause(alarm)

    async def _pause(self, alarm: asyncio.Event) -> None:
        """Wait for the next check, which comes sooner when an attempt has failed."""
        interval = self._settings.interval * (_SHORTEST + 2 * (1 - _SHORTEST) * self._random.random())
        gap = min(interval, _GAP)
        await asyncio.sleep(gap)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(interval - gap):
                await alarm.wait()
        alarm.clear()

    async def check(self, instance: Instance, *, deep: bool = False) -> Checked:
        """One check of `instance`; never raises for what an engine does."""
        key = self._secrets.get(instance.id)
        request = _one_token(instance, key) if deep else None
        timeout = self._settings.deep_timeout if request is not None else self._settings.timeout
        try:
            status, headers, body = await self._upstream.fetch(
                instance.address, request or adapter_for(instance.engine).health(instance, key), timeout, _ANSWER_LIMIT
            )
        except UpstreamFailed as failed:
            busy = self._lives(instance.id, timeout, failed.failure)
            return Checked(Probed(instance.id, healthy=False, busy=busy), failed.detail)
        self._lives(instance.id, timeout, None)
        if request is not None and status >= 300:
            outcome = adapter_for(instance.engine).refused(status, headers, body, 0.0, ())
            healthy, definite = outcome.cause in (Cause.RATE_LIMITED, Cause.REJECTED), False
        else:
            healthy, definite = status < 500, status == 503
        reason = "" if healthy else f"HTTP {status}"
        if status in (401, 403):
            reason = f"HTTP {status}: {'it wants a key' if key is None else 'its key is refused'}"
        return Checked(Probed(instance.id, healthy, definite=definite), reason)

    def _lives(self, name: str, timeout: float, failure: Failure | None) -> bool:
        """Whether its check says nothing of an instance: there was no socket, or silence from one heard of lately."""
        now, reads = asyncio.get_running_loop().time(), self._pulse(name).reads
        life = self._life.setdefault(name, _Life(reads))
        if reads != life.reads:
            life.reads, life.at = reads, now
        if failure is Failure.SHORTAGE:
            return True
        return failure is Failure.TIMEOUT and now - life.at <= _LIFE_SIGNS * (self._settings.interval + timeout)

    def _note(self, result: Probed, reason: str) -> None:
        wrong = reason if result.healthy else _DOWN
        if result.busy or self._wrong.get(result.instance, "") == wrong:
            return
        self._wrong[result.instance] = wrong
        if reason:
            _log.warning("health check", instance=result.instance, healthy=result.healthy, reason=reason)
        else:
            _log.info("health check", instance=result.instance, healthy=True)


def _one_token(instance: Instance, key: str | None) -> EngineRequest | None:
    """The smallest completion, for an instance that names a model of its own."""
    name = next((served.upstream or served.name for served in instance.models if "*" not in served.name), None)
    if name is None:
        return None
    body = {"model": name, "messages": [{"role": "user", "content": "ping"}], "max_tokens": 1, "temperature": 0}
    return adapter_for(instance.engine).encode(parse("chat", msgspec.json.encode(body)), instance, name, key)
