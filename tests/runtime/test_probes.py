"""Health checks: what counts for, what against, and what says nothing about an instance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

import pytest
from structlog.testing import capture_logs

from headrace.model import Engine, Instance, Probed, ServedModel
from headrace.runtime.attempts import Pulse
from headrace.runtime.probes import Prober, ProbeSettings
from headrace.runtime.upstream import Upstream
from headrace.testing import Changes, Script, ScriptedConnection, ScriptedEngine, steps
from tests.runtime.virtual import later, virtually

QUICK = ProbeSettings(interval=1.0, timeout=1.0, deep_every=0)
GOOD = steps.json(200, {})
BAD = steps.json(500, {})


@dataclass
class Watch:
    """A prober, and what it reported with the time of each report."""

    pulse: Pulse = field(default_factory=Pulse)
    prober: Prober = field(init=False)
    results: list[Probed] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)

    def note(self, result: Probed) -> None:
        self.results.append(result)
        self.times.append(asyncio.get_running_loop().time())
        self.changes.notify()

    async def reports(self, count: int) -> Sequence[Probed]:
        """Wait for so many reports."""
        await self.changes.until(lambda: len(self.results) >= count, 10_000.0, f"{count} reports")
        return self.results[:count]


@asynccontextmanager
async def watching(settings: ProbeSettings = QUICK, seed: int = 0) -> AsyncIterator[Watch]:
    """A prober that watches nothing yet."""
    upstream, watch = Upstream(), Watch()
    watch.prober = Prober(watch.note, upstream, {"a": "the-key"}, settings, lambda _: watch.pulse, Random(seed))
    try:
        yield watch
    finally:
        await watch.prober.close()
        await upstream.close()


def instance(engine: ScriptedEngine, kind: Engine = Engine.OPENAI, model: str = "m") -> Instance:
    """The engine as the configuration names it."""
    engine.answers_probes = False
    return Instance(id="a", address=engine.url, engine=kind, models=(ServedModel(name=model),))


@pytest.mark.parametrize(
    ("script", "expected", "reason"),
    [
        (GOOD, Probed("a", healthy=True), ""),
        (steps.json(404, {}), Probed("a", healthy=True), ""),
        (steps.json(429, {}), Probed("a", healthy=True), ""),
        (steps.json(401, {}), Probed("a", healthy=True), "HTTP 401: its key is refused"),
        (BAD, Probed("a", healthy=False), "HTTP 500"),
        (steps.json(503, {"error": "Loading model"}), Probed("a", healthy=False, definite=True), "HTTP 503"),
        (steps.cut(), Probed("a", healthy=False), "closed before the end of the answer"),
        (steps.raw(b"garbage\r\n\r\n"), Probed("a", healthy=False), "not an HTTP answer, or a header too large"),
        (steps.hang(), Probed("a", healthy=False), "no complete answer in time"),
    ],
    ids=["200", "404", "429", "401", "500", "503", "cut", "garbage", "silence"],
)
@virtually
async def test_what_a_check_says(script: Script, expected: Probed, reason: str) -> None:
    """Whatever answers is up, 429 included; 503 is a definite no; errors and silence speak against it, named."""
    async with ScriptedEngine(script, guard=100.0) as engine, watching() as watch:
        assert await watch.prober.check(instance(engine)) == (expected, reason)


@virtually
async def test_a_refused_connection_speaks_against_it() -> None:
    """Nobody listens: not healthy, without delay."""
    async with ScriptedEngine() as engine, watching() as watch:
        await engine.stop_listening()
        assert await watch.prober.check(instance(engine)) == (
            Probed("a", healthy=False),
            "no connection (ECONNREFUSED)",
        )
        assert asyncio.get_running_loop().time() == 0.0


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (Engine.OPENAI, "/v1/models"),
        (Engine.VLLM, "/health"),
        (Engine.LLAMACPP, "/health"),
        (Engine.OLLAMA, "/api/version"),
    ],
)
@virtually
async def test_each_engine_is_asked_what_costs_it_nothing(kind: Engine, path: str) -> None:
    """A GET that makes no tokens, with the instance's own key."""
    async with ScriptedEngine(GOOD) as engine, watching() as watch:
        await watch.prober.check(instance(engine, kind))
        (asked,) = engine.requests
    assert (asked.method, asked.path, asked.header("authorization")) == ("GET", path, "Bearer the-key")


@virtually
async def test_silence_with_life_in_it_is_busy() -> None:
    """No answer to the check while bytes of answers flow is "busy"; when they stop, it counts after a while."""
    async with ScriptedEngine(steps.hang(), guard=1000.0) as engine, watching() as watch:
        watch.prober.watch([instance(engine)])
        await watch.reports(1)
        watch.pulse.reads += 1
        (first, second, third) = await watch.reports(3)
        assert not first.busy, "nothing was ever heard of it"
        assert second.busy
        assert third.busy, "one quiet round is no news"
        assert not any(result.healthy for result in (first, second, third))
        long_after = await watch.reports(8)
        assert not long_after[-1].busy
        assert watch.times[2] - watch.times[1] < 4.0


@virtually
async def test_a_closed_door_is_not_busy() -> None:
    """An engine that refuses connections is gone, even if bytes of it came a moment ago."""
    async with ScriptedEngine(BAD) as engine, watching() as watch:
        await watch.prober.check(instance(engine))
        watch.pulse.reads += 1
        assert not (await watch.prober.check(instance(engine))).result.busy
        await engine.stop_listening()
        engine.close_connections()
        watch.pulse.reads += 1
        assert not (await watch.prober.check(instance(engine))).result.busy


@virtually
async def test_a_deep_check_counts() -> None:
    """Every third check really generates one token; one that fails is repeated each time until it succeeds."""
    broken = True

    async def script(conn: ScriptedConnection) -> None:
        if conn.request.method == "POST" and broken:
            await conn.json(500, {})
        else:
            await conn.answer("x")

    async with ScriptedEngine(script) as engine, watching(replace(QUICK, deep_every=3)) as watch:
        watch.prober.watch([instance(engine)])
        first = await watch.reports(6)
        assert [result.healthy for result in first] == [True, True, True, False, False, False]
        broken = False
        assert [result.healthy for result in (await watch.reports(9))[6:]] == [True, True, True]
        methods = [request.method for request in engine.requests][:9]
        deep = engine.requests[3].json()
    assert methods == ["GET", "GET", "GET", "POST", "POST", "POST", "POST", "GET", "GET"]
    assert (deep["model"], deep["max_tokens"]) == ("m", 1)


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (400, True), (404, True), (429, True), (401, False)])
@virtually
async def test_what_a_deep_check_says(status: int, healthy: bool) -> None:
    """An engine that refuses the tiny request works all the same; one that does not know our key does not."""
    async with ScriptedEngine(steps.json(status, {})) as engine, watching() as watch:
        assert (await watch.prober.check(instance(engine), deep=True)).result.healthy is healthy


@virtually
async def test_a_pattern_names_no_model_to_ask_for() -> None:
    """An instance that serves a pattern only is never asked for a token."""
    async with ScriptedEngine(GOOD) as engine, watching() as watch:
        await watch.prober.check(instance(engine, model="gw/*"), deep=True)
        assert engine.requests[0].method == "GET"


@virtually
async def test_checks_do_not_beat_in_step() -> None:
    """The times between checks are spread around the interval, as the given chance has it and not otherwise."""

    async def beats(seed: int) -> list[float]:
        async with ScriptedEngine(GOOD) as engine, watching(seed=seed) as watch:
            watch.prober.watch([instance(engine)])
            await watch.reports(6)
            return [round(after - before, 6) for before, after in zip(watch.times, watch.times[1:], strict=False)]

    one, same, other = await beats(1), await beats(1), await beats(2)
    assert one == same
    assert one != other
    assert len(set(one)) == 5
    assert all(0.8 <= beat <= 1.2 for beat in one)


@virtually
async def test_a_failed_attempt_hurries_the_next_check() -> None:
    """Soon, but not more often than once a second; without failures the interval stands."""
    async with ScriptedEngine(GOOD) as engine, watching(ProbeSettings(interval=100.0, deep_every=0)) as watch:
        watch.prober.watch([instance(engine)])
        await watch.reports(1)
        for _ in range(3):
            assert watch.pulse.alarm is not None
            watch.pulse.alarm()
        await watch.reports(3)
    gaps = [after - before for before, after in pairwise(watch.times)]
    assert gaps[0] == pytest.approx(1.0, abs=0.1)
    assert 80.0 <= gaps[1] <= 122.0


@virtually
async def test_hurried_checks_do_not_take_an_instance_out_sooner() -> None:
    """While attempts fail each second, failed checks are reported at the usual pace; that it is back, at once."""
    async with ScriptedEngine(BAD) as engine, watching(ProbeSettings(interval=10.0, deep_every=0)) as watch:
        watch.prober.watch([instance(engine)])
        began = asyncio.get_running_loop().time()
        while len(watch.results) < 3:
            if watch.pulse.alarm is not None:
                watch.pulse.alarm()
            await later(0.5)
        assert asyncio.get_running_loop().time() - began >= 16.0
        assert len(engine.requests) > 10
        engine.default = GOOD
        assert watch.pulse.alarm is not None
        watch.pulse.alarm()
        assert (await watch.reports(4))[3].healthy
        assert watch.times[3] - watch.times[2] < 3.0


@virtually
async def test_exactly_the_given_instances_are_watched() -> None:
    """Watched anew, the unchanged go on as before, the removed are left alone, the moved are asked at the new place."""
    async with ScriptedEngine(GOOD) as one, ScriptedEngine(GOOD) as two, watching() as watch:
        stays, goes = instance(one), replace(instance(two), id="b")
        watch.prober.watch([stays, goes, Instance(id="e", engine=Engine.ECHO)])
        await watch.reports(2)
        watch.prober.watch([stays])
        await watch.reports(12)
        assert {result.instance for result in watch.results[2:]} == {"a"}
        assert len(two.requests) == 1
        await two.until(lambda: len(one.requests) >= 11)
        watch.prober.watch([replace(stays, address=two.url)])
        seen = len(one.requests)
        await watch.reports(16)
        assert len(one.requests) == seen
        assert len(two.requests) > 1


@virtually
async def test_one_check_that_goes_wrong_does_not_end_them_all() -> None:
    """A mistake while a result is taken is logged; the next check comes all the same."""
    async with ScriptedEngine(GOOD) as engine:
        upstream, seen, changes = Upstream(), 0, Changes()

        def step(_: Probed) -> None:
            nonlocal seen
            seen += 1
            changes.notify()
            if seen == 1:
                raise RuntimeError("a mistake")

        prober = Prober(step, upstream, {}, QUICK, lambda _: Pulse(), Random(0))
        prober.watch([instance(engine)])
        await changes.until(lambda: seen >= 3, 100.0, "three results")
        await prober.close()
        await upstream.close()


@virtually
async def test_a_change_is_logged_once_with_its_reason() -> None:
    """Down, a key that is refused, well: one line each, however often it is checked; only the last is no warning."""
    async with ScriptedEngine(GOOD) as engine, watching() as watch:
        with capture_logs() as logs:
            watch.prober.watch([instance(engine)])
            for number, script in enumerate((GOOD, BAD, steps.json(401, {}), GOOD), 1):
                engine.default = script
                await watch.reports(4 * number)
    told = [(line["log_level"], line["healthy"], line.get("reason")) for line in logs]
    assert told == [
        ("warning", False, "HTTP 500"),
        ("warning", True, "HTTP 401: its key is refused"),
        ("info", True, None),
    ]
