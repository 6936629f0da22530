"""A whole headrace in the test's own event loop: real sockets on both sides, no process, no server loop.

Because nothing in it ticks, it also runs on virtual time (`virtually`): minutes of cooldown pass in milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random

from prometheus_client import CollectorRegistry

from headrace.build import Headrace, build
from headrace.cli.serve import server_settings
from headrace.config import Config
from headrace.model import Decision, Event, InstanceView, Sealed
from headrace.server import hosted
from headrace.testing import Changes, MockEngine, ScriptedEngine
from tests.e2e.client import Client, client
from tests.patience import GUARD


class Front:
    """A running gateway, and a client that talks to it."""

    def __init__(self, headrace: Headrace, caller: Client) -> None:
        self.headrace = headrace
        self.client = caller
        self.sealed = 0
        """Answers that grew past what is kept for late joiners."""
        self._changes = Changes()
        headrace.gateway.observe(self._observe)

    def _observe(self, event: Event, decisions: Sequence[Decision], now: float) -> None:
        self.sealed += isinstance(event, Sealed)
        asyncio.get_running_loop().call_soon(self._changes.notify)

    async def until(self, condition: Callable[[], bool], what: str, within: float = GUARD) -> None:
        """Wait until a condition over what the scheduler holds is true."""
        await self._changes.until(condition, within, what)

    async def idle(self) -> None:
        """Wait until nothing is left of any request, and check that every count is back to zero."""
        await self.until(lambda: self.headrace.gateway.alive == 0, "every request ends")
        snapshot = self.headrace.snapshot()
        held = (snapshot.queued, snapshot.running, snapshot.waiting_retry, snapshot.looking, snapshot.following)
        assert held == (0, 0, 0, 0, 0)
        assert all((view.in_flight, view.unstarted_tokens) == (0, 0) for view in snapshot.instances)
        totals = snapshot.totals
        assert totals["accepted"] == totals["answered"] + totals["failed"] + totals["cancelled"]

    def instance(self, name: str = "a") -> InstanceView:
        """What is known of one instance now."""
        return next(view for view in self.headrace.snapshot().instances if view.id == name)

    @property
    def totals(self) -> Mapping[str, int]:
        """The gateway's counts since its start."""
        return self.headrace.snapshot().totals


@asynccontextmanager
async def front(*engines: ScriptedEngine | MockEngine, **sections: Mapping[str, object]) -> AsyncIterator[Front]:
    """A gateway before these engines, which are called a, b, c, ... and serve the model `m`.

    `sections` are those of the configuration file; an `instances` section holds what is to be added to each engine's,
    where `{}` stands for its name, `each` what is to be added to that of one of them, by name, and `env` their keys by
    the variables' names. Health checks happen once, at the start; dead letters stay in memory unless a path is given.
    """
    each = sections.pop("each", {})
    extra, env = sections.pop("instances", {}), sections.pop("env", {})
    instances = [
        {"id": name, "address": engine.url, "models": ["m"], **_of(name, extra), **_own(each.get(name))}
        for name, engine in zip("abcdefgh", engines, strict=False)
    ]
    settings = {"health_check": {"interval_seconds": 86_400}, "dead_letters": {"path": None}, **sections}
    config = Config.model_validate({"instances": instances, **settings})
    config = config.with_keys({name: str(value) for name, value in env.items()})
    registry = CollectorRegistry()
    async with (
        build(config, registry=registry, random=Random(1)) as headrace,
        hosted(headrace, server_settings(config), registry) as url,
        client(url) as caller,
    ):
        yield Front(headrace, caller)


def _of(name: str, extra: Mapping[str, object]) -> Mapping[str, object]:
    """What is to be added for one engine: texts with `{}` in them get its name."""
    return {key: value.replace("{}", name) if isinstance(value, str) else value for key, value in extra.items()}


def _own(extra: object) -> Mapping[str, object]:
    return extra if isinstance(extra, Mapping) else {}
