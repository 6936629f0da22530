"""From a configuration to a running gateway: the one place where the parts are put together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from random import Random
from typing import Self

from prometheus_client import CollectorRegistry, Gauge

from headrace.config import Config
from headrace.core.scaling import Action, Advice, Demand, evaluate
from headrace.core.scheduler import Scheduler
from headrace.model import Engine, Instance
from headrace.runtime.attempts import HttpBackend
from headrace.runtime.backend import Backend, Timeouts
from headrace.runtime.client import new_client
from headrace.runtime.demand import DemandMeter
from headrace.runtime.gateway import Gateway
from headrace.runtime.gauges import Gauges
from headrace.runtime.instance_memory import InstanceMemory
from headrace.runtime.journal import Journal
from headrace.runtime.latencies import Latencies
from headrace.runtime.letter_keeping import LetterKeeping
from headrace.runtime.letter_metrics import LetterMetrics
from headrace.runtime.observe import Metrics
from headrace.runtime.probes import Prober, ProbeSettings
from headrace.runtime.registry import Registry
from headrace.runtime.replay_view import message
from headrace.runtime.replays import Replays
from headrace.runtime.resending import Resender
from headrace.runtime.scraping import Scraper, ScrapeSettings
from headrace.runtime.spending import Spending
from headrace.runtime.stores import DeadLetters
from headrace.runtime.stores.database import sqlite_url
from headrace.runtime.stores.memory import MemoryCache, MemoryDeadLetters
from headrace.runtime.stores.sql import SqlDeadLetters
from headrace.runtime.webhooks import Webhooks
from headrace.runtime.workers import EchoWorker, WorkerBackend


class Headrace:
    """A gateway with everything around it: engines, health checks, stores, metrics.

    `start` opens the stores and begins the health checks, `close` ends what is left; as a context manager it does both.
    """

    def __init__(
        self, config: Config, registry: CollectorRegistry, random: Random, journal: Journal | None = None
    ) -> None:
        instances = config.model_instances()
        self._keys, self._key_in = config.secrets(), config.key_in
        self._variables = {i.api_key_env: self._keys[i.id] for i in instances if i.api_key_env and i.id in self._keys}
        self._upstream = new_client(config.proxies())
        timeouts = Timeouts(
            connect=config.timeouts.connect,
            first_token=config.timeouts.first_token,
            idle=config.timeouts.idle,
            attempt=config.timeouts.attempt,
        )
        self._http = HttpBackend(self._upstream, self._keys, timeouts)
        self._echo = WorkerBackend(EchoWorker(), timeouts)
        self._disk, self.dead_letters = _dead_letters(config)
        scheduler = Scheduler(config.scheduler_settings(), instances, random)
        self.gateway = Gateway(
            scheduler,
            self._backend,
            cache=_cache(config, random),
            dead_letters=self.dead_letters,
            keeping=config.letters_kept(),
        )
        gateway = self.gateway  # what callers ask of it goes there without a detour through this
        self.open, self.cancel, self.step = gateway.open, gateway.cancel, gateway.step
        self.positions, self.places, self.weighs_prefix = gateway.positions, gateway.places, gateway.weighs_prefix
        self.snapshot, self.weigh_up = gateway.snapshot, gateway.weigh_up
        self._scaling, self._journal = config.scaling.settings(), journal
        self.latencies, self._demand = Latencies(), DemandMeter(scheduler.load, self._scaling.window)
        self._observe(config, registry, instances)
        self.replays, self._keeping = self._letter_parts(config, registry)
        self._prober, self._scraper = self._watchers(config, random)
        self._polls = config.metrics.enabled
        self.registry = Registry(
            instances, self.gateway.step, follow=self._follow, key=self._key, changed=self._registry_changed
        )
        self._memory = self._instance_memory(config, registry)

    def _observe(self, config: Config, registry: CollectorRegistry, instances: Sequence[Instance]) -> None:
        """Let everything that counts see every step, and what is held be seen at a scrape."""
        observe, replays = partial(self.gateway.observe, progress=False), lambda: self._upstream.replays
        registry.register(Gauges(self.snapshot, self.dead_letters, self.stages, replays, config.metrics.users))
        observe(Metrics(registry, exact_models(instances), config.models, self.latencies))
        prices = config.scheduler_settings().fairness.money
        if prices:
            observe(Spending(registry, prices))
        observe(self._demand)
        if self._journal is not None:
            observe(self._journal)

    def _watchers(self, config: Config, random: Random) -> tuple[Prober, Scraper]:
        """What looks at the engines beside the traffic."""
        health, step, client = config.health_check, self.gateway.step, self._upstream
        checks = ProbeSettings(
            interval=health.interval_seconds, timeout=health.timeout_seconds, deep_every=health.deep_check_interval
        )
        polls = ScrapeSettings(interval=config.metrics.poll_seconds, path=config.metrics.path)
        prober = Prober(step, client, self._keys, checks, self._http.pulses.__getitem__, random)
        return prober, Scraper(step, client, self._keys, polls, random)

    def _instance_memory(self, config: Config, registry: CollectorRegistry) -> InstanceMemory | None:
        """What keeps the registered instances and what is learned of all; None: they end with the process."""
        path = config.dead_letters.path
        if path is None:
            return None
        workers, step, learned = config.server.workers, self.gateway.step, self.gateway.learned
        memory = InstanceMemory(sqlite_url(path), self.registry, step, learned, workers=workers)
        Gauge(
            "headrace_instance_memory_degraded",
            "1: registered instances and what is learned of all cannot be kept.",
            registry=registry,
        ).set_function(lambda: float(memory.degraded))
        return memory

    def _letter_parts(self, config: Config, registry: CollectorRegistry) -> tuple[Replays, LetterKeeping]:
        """What sends dead letters again, and what is done with them in the background."""
        webhooks, hook, letters = Webhooks(self._upstream), config.letter_hook(), self.dead_letters
        resender = Resender(self.gateway)
        self.gateway.observe(resender, progress=False)
        secret = None if hook is None else hook.secret
        replays = Replays(resender, letters, webhooks, message, secret=secret, listed=config.admin.listed())
        keeping = LetterKeeping(letters, webhooks, keep_days=config.dead_letters.keep_days, hook=hook)
        registry.register(LetterMetrics(letters, keeping, replays))
        return replays, keeping

    async def start(self) -> Self:
        """Open the stores and begin the health checks; inside the event loop that it is to live in."""
        if self._disk is not None:
            await self._disk.open()
        self._keeping.start()
        if self._journal is not None:
            self._journal.start()
        if self._memory is None:
            self.registry.restore((), ())
        else:
            await self._memory.open()
        self._demand.begin([entry.instance.id for entry in self.registry.instances], self.gateway.now)
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def administration(self) -> Self:
        """What the admin API works with: all of it."""
        return self

    @property
    def now(self) -> float:
        """The scheduler's clock."""
        return self.gateway.now

    def scaling(self) -> tuple[Advice, Demand]:
        """Whether more or fewer instances are needed, and what that rests on."""
        now = self.gateway.now
        demand = self._demand.demand(self.gateway.snapshot().instances, now)
        advice = evaluate(demand, self._scaling)
        if advice.action is Action.UP:
            self._demand.asked_for_more(now)
        return advice, demand

    async def saved(self) -> bool:
        """Write the changes of the registry now, if they are kept; False: they could not be written."""
        return self._memory is None or await self._memory.flush()

    @property
    def exchanges(self) -> int:
        """Exchanges with engines that have not ended, health checks apart."""
        return self._upstream.running

    def stages(self) -> Iterable[tuple[str, int, int]]:
        """Depth and capacity of each stage that can hold something here."""
        snapshot = self.snapshot()
        most = sum(view.max_concurrent for view in snapshot.instances)
        yield "queue", snapshot.queued, snapshot.queue_size
        yield "inference", snapshot.running, most

    async def drain(self, grace: float) -> None:
        """Take no new work; give the running `grace` seconds; answer everybody else."""
        self.replays.stop()
        await self.gateway.drain(grace)
        self.dead_letters.feed.close()

    async def close(self) -> None:
        """End what is left and let go of connections and files."""
        await self._prober.close()
        await self._scraper.close()
        await self.replays.close()
        await self._keeping.close()
        keepers = [self.gateway.close()]
        if self._memory is not None:
            keepers.append(self._memory.close())
        await asyncio.gather(*keepers)  # side by side: each waits where their file is locked
        if self._journal is not None:
            await self._journal.close()
        await self._upstream.close()

    def _registry_changed(self) -> None:
        if self._memory is not None:
            self._memory.changed()

    def _follow(self, instances: Sequence[Instance]) -> None:
        """The set of instances changes: keys, checks and polls are those of the new one."""
        keys = {i.id: key for i in instances if i.api_key_env and (key := self._key(i.api_key_env)) is not None}
        self._keys.clear()
        self._keys.update(keys)
        self._http.forget_all_but(instance.id for instance in instances)
        self._prober.watch(instances)
        self._scraper.watch(instances if self._polls else ())

    def _key(self, variable: str) -> str | None:
        """The key in a variable that the configuration names, or may be named elsewhere."""
        return self._variables.get(variable) or self._key_in(variable)

    def _backend(self, instance: Instance) -> Backend:
        return self._echo if instance.engine is Engine.ECHO else self._http


def build(
    config: Config,
    *,
    registry: CollectorRegistry | None = None,
    random: Random | None = None,
    journal: Journal | None = None,
) -> Headrace:
    """Put a gateway together. Nothing runs before `start`.

    Args:
        config: what it is to be.
        registry: where its metrics go; a new one if None.
        random: its only source of chance; seeded by the system if None.
        journal: writes down each request that ends; started and closed with the gateway.
    """
    return Headrace(config, registry or CollectorRegistry(), random or Random(), journal)


def exact_models(instances: Iterable[Instance]) -> tuple[str, ...]:
    """The model names that instances serve by name, in order, each once."""
    names = (served.name for instance in instances for served in instance.models if "*" not in served.name)
    return tuple(dict.fromkeys(names))


def _cache(config: Config, random: Random) -> MemoryCache:
    dedup = config.dedup
    return MemoryCache(random, ttl=dedup.ttl_seconds, max_entries=dedup.max_entries, max_bytes=dedup.max_bytes)


def _dead_letters(config: Config) -> tuple[SqlDeadLetters | None, DeadLetters]:
    """The store, and the same once more if it has to be opened."""
    letters = config.dead_letters
    if letters.path is None:
        return None, MemoryDeadLetters(capacity=letters.capacity)
    disk = SqlDeadLetters(sqlite_url(letters.path), capacity=letters.capacity)
    return disk, disk
