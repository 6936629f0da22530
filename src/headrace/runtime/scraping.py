"""The engines' own metrics: one poll per local instance and process, and what it says as a fact for the scheduler.

A poll each `interval` (jittered, so that neither instances nor replicas beat in step), never two at a time at one
instance, over within three intervals. Whatever is not a page of metrics (404, HTML, a hang, nothing known in it) is
`Reported(instance, None)`, told and logged once per change; the scheduler itself looks at the age of what it knows.

An engine without metrics is asked ever less often, at last every 10 s, so that a server that has none is not bothered;
one that had them before every 2 s, so that it is back soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random

import structlog

from headrace.model import EngineReport, Instance, Reported, Tier
from headrace.runtime.client import Client
from headrace.runtime.failures import UpstreamFailed
from headrace.runtime.watches import Watches
from headrace.wire.engine_metrics import LARGEST_PAGE, Previous, metrics_requests, read_metrics, reports_metrics

_PATIENCE = 3
"""Intervals that a poll may take."""
_LONGEST_PAUSE, _LONGEST_PAUSE_ONCE_KNOWN = 10.0, 2.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeSettings:
    """How often, in seconds, and where."""

    interval: float = 0.25
    path: str | None = None
    """The place at engines that name none of their own; None: the engine's usual one."""


class Scraper:
    """Polls the metrics of instances until it is closed.

    Args:
        step: told what each good poll says, and once when nothing is known any more.
        secrets: the instances' keys by their ids.
        random: jitter.
    """

    def __init__(
        self,
        step: Callable[[Reported], None],
        upstream: Client,
        secrets: Mapping[str, str],
        settings: ScrapeSettings,
        random: Random,
    ) -> None:
        self._step = step
        self._upstream = upstream
        self._secrets = secrets
        self._settings = settings
        self._random = random
        self._watches = Watches(self._keep_polling)

    def watch(self, instances: Iterable[Instance]) -> None:
        """Poll from now on those of `instances` that are local and of a kind that has metrics, and no others."""
        self._watches.keep(i for i in instances if i.tier is Tier.LOCAL and i.address and reports_metrics(i.engine))

    async def close(self) -> None:
        """Stop all polls."""
        await self._watches.close()

    async def _keep_polling(self, instance: Instance) -> None:
        source = _Source(instance, self._secrets.get(instance.id), self._settings)
        now = asyncio.get_running_loop().time
        await asyncio.sleep(self._settings.interval * self._random.random())
        try:
            while True:
                began = now()
                report, reason = await source.poll(self._upstream)
                if source.changed(report):
                    _note(instance, report, reason)
                if report is not None or source.just_changed:
                    self._step(Reported(instance.id, report))
                pause = source.pause * (0.8 + 0.4 * self._random.random())
                await asyncio.sleep(max(began + pause - now(), self._settings.interval / 2))
        except Exception:  # noqa: BLE001 - the task's outer edge: this instance goes on without metrics
            _log.exception("engine metrics are no longer read", instance=instance.id)


class _Source:
    """One instance's metrics: where they turned out to be, and what was known of them."""

    def __init__(self, instance: Instance, key: str | None, settings: ScrapeSettings) -> None:
        self._instance = instance
        self._interval = settings.interval
        self._places = metrics_requests(instance, key, settings.path)
        self._place = 0
        self._previous = Previous()
        self._known: bool | None = None
        self._known_once = False
        self._misses = 0
        self.just_changed = False

    async def poll(self, upstream: Client) -> tuple[EngineReport | None, str]:
        """What they say now, or None and why not."""
        address, request = self._places[self._place]
        try:
            status, _, body = await upstream.fetch(address, request, _PATIENCE * self._interval, LARGEST_PAGE)
        except UpstreamFailed as failed:
            return None, failed.detail
        if status != 200:
            return None, f"status {status}"
        report, self._previous = read_metrics(self._instance.engine, body, self._instance.models, self._previous)
        return report, "" if report is not None else "no known metric in the answer"

    def changed(self, report: EngineReport | None) -> bool:
        """Count a poll's result; True when the one before said the opposite, or there was none."""
        known = report is not None
        self.just_changed = known is not self._known
        self._known = known
        self._known_once = self._known_once or known
        self._misses = 0 if known else self._misses + 1
        if not self._known_once:
            self._place = (self._place + 1) % len(self._places)
        return self.just_changed

    @property
    def pause(self) -> float:
        """Seconds from the beginning of the last poll to that of the next."""
        longest = _LONGEST_PAUSE_ONCE_KNOWN if self._known_once else _LONGEST_PAUSE
        return max(self._interval, min(longest, self._interval * 2.0 ** min(self._misses, 16)))


def _note(instance: Instance, report: EngineReport | None, reason: str) -> None:
    if report is None:
        _log.warning("engine metrics unknown", instance=instance.id, reason=reason)
    else:
        _log.info("engine metrics known", instance=instance.id)
