"""Polling engines' metrics: how often, how patiently, and what the scheduler is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from random import Random
from typing import Any, ParamSpec

import pytest
from structlog.testing import capture_logs

from headrace.model import Engine, EngineReport, Instance, Reported, Tier
from headrace.runtime.scraping import Scraper, ScrapeSettings
from headrace.runtime.upstream import Upstream
from headrace.testing import Changes, MockEngine, Script, run_virtual, steps
from headrace.wire.adapters import EngineRequest
from tests.runtime.listener import Listener
from tests.runtime.metered import NOT_FOUND, Metered, page

P = ParamSpec("P")
HTML = steps.whole(200, b"<html><body>vllm:num_requests_running 3</body></html>", {"content-type": "text/html"})


def virtually(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Decorator: the test runs on virtual time, loopback sockets included."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(test(*args, **kwargs), settle=0.003)

    return run


class Polled:
    """A scraper, and everything the scheduler would be told."""

    scraper: Scraper

    def __init__(self) -> None:
        self.told: list[tuple[float, EngineReport | None]] = []
        self._changes = Changes()

    def hear(self, event: Reported) -> None:
        self.told.append((asyncio.get_running_loop().time(), event.report))
        self._changes.notify()

    @property
    def reports(self) -> list[EngineReport | None]:
        return [report for _, report in self.told]

    async def until(self, condition: Callable[[], bool], what: str = "the scheduler is told") -> None:
        await self._changes.until(condition, 1000.0, what)


@asynccontextmanager
async def polled(
    *instances: Instance, secrets: Mapping[str, str] | None = None, settings: ScrapeSettings | None = None
) -> AsyncIterator[Polled]:
    """A scraper that watches these."""
    upstream = Upstream()
    seen = Polled()
    seen.scraper = Scraper(seen.hear, upstream, secrets or {}, settings or ScrapeSettings(), Random(1))
    seen.scraper.watch(instances)
    try:
        yield seen
    finally:
        await seen.scraper.close()
        await upstream.close()


def vllm(metered: Metered, **fields: object) -> Instance:
    """That engine as an instance."""
    return replace(Instance(id="gpu", address=metered.engine.url, engine=Engine.VLLM), **fields)  # type: ignore[arg-type]


async def later(seconds: float) -> None:
    """Let virtual time pass."""
    loop = asyncio.get_running_loop()
    passed = loop.create_future()
    loop.call_later(seconds, passed.set_result, None)
    await passed


# --------------------------------------------------------------------------------------------------------- how often


@virtually
async def test_four_polls_a_second_with_jitter_and_the_instances_key() -> None:
    """Each good poll is told; the gaps differ, so that nothing beats in step; guarded metrics are read as well."""
    metered = Metered(page(3, 1, 0.5))
    async with metered.engine, polled(vllm(metered), secrets={"gpu": "sk-own"}) as seen:
        await later(10.0)
    assert 36 <= len(metered.polls) <= 44
    assert len(seen.told) == len(metered.polls)
    assert all(0.2 <= gap <= 0.31 for gap in metered.gaps())
    assert len({round(gap, 3) for gap in metered.gaps()}) > 10
    assert set(seen.reports) == {EngineReport(running=3, waiting=1, kv=0.5)}
    for _, request in metered.polls:
        assert (request.path, request.header("authorization")) == ("/metrics", "Bearer sk-own")


@virtually
async def test_never_two_polls_at_once_at_one_instance() -> None:
    """An engine that does not answer gets no second poll on top; after three intervals the first is given up."""
    metered = Metered(steps.hang())
    async with metered.engine, polled(vllm(metered)) as seen:
        await later(60.0)
        assert metered.most_at_once == 1
        assert metered.engine.open_connections <= 1
    assert seen.reports == [None]
    assert 0.75 <= seen.told[0][0] <= 1.05


@virtually
async def test_one_engine_that_hangs_holds_up_no_other() -> None:
    """Every instance is polled on its own."""
    slow, quick = Metered(steps.hang()), Metered(page(1))
    async with slow.engine, quick.engine, polled(vllm(slow, id="slow"), vllm(quick, id="quick")):
        await later(10.0)
    assert len(quick.polls) >= 36


@virtually
async def test_an_engine_without_metrics_is_asked_ever_less_often() -> None:
    """A server that has none sees a handful of polls in the first minute, then one in about ten seconds."""
    metered = Metered(NOT_FOUND)
    async with metered.engine, polled(vllm(metered)) as seen:
        await later(120.0)
    assert len(metered.polls) <= 20
    assert all(8.0 <= gap <= 12.0 for gap in metered.gaps()[-5:])
    assert seen.reports == [None]


@virtually
async def test_an_engine_that_had_metrics_is_back_soon() -> None:
    """After a long outage the first good poll comes within about two seconds."""
    metered = Metered(page(1))
    async with metered.engine, polled(vllm(metered)) as seen:
        await later(2.0)
        metered.say = steps.json(500, {})
        await later(60.0)
        metered.say = page(2)
        before, began = len(seen.told), asyncio.get_running_loop().time()
        await seen.until(lambda: len(seen.told) > before)
    assert seen.reports[-2:] == [None, EngineReport(running=2, waiting=0, kv=0)]
    assert seen.told[-1][0] - began <= 2.5


# ------------------------------------------------------------------------------------------------- what is not a page


@pytest.mark.parametrize(
    "bad",
    [
        NOT_FOUND,
        steps.json(500, {}),
        steps.json(401, {}),
        steps.whole(302, page(), {"location": "/metrics"}),
        steps.whole(204, b""),
        HTML,
        steps.whole(200, b"\xff\x00garbage\n\n"),
        steps.whole(200, b""),
        steps.raw(b"no http\r\n\r\n"),
        steps.reset(),
        [steps.head(200), steps.send(page()), steps.cut()],
        [steps.head(200), steps.send(page()), steps.hang()],
        steps.whole(200, page() + b"#" * (3 * 1024 * 1024)),
    ],
    ids=lambda _: "",
)
@virtually
async def test_what_is_no_page_of_metrics_is_told_once_as_unknown(bad: Script) -> None:
    """Absent, refused, HTML, garbled, cut, endless, too large: nothing is known, in one fact and one line of log."""
    metered = Metered(page(3, 1, 0.5))
    with capture_logs() as logs:
        async with metered.engine, polled(vllm(metered)) as seen:
            await seen.until(lambda: len(seen.told) >= 2)
            metered.say = bad
            await later(8.0)
            assert seen.reports.count(None) == 1
            assert seen.reports[-1] is None
            metered.say = page(1)
            await seen.until(lambda: seen.reports[-1] is not None)
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [
        ("engine metrics known", "info"),
        ("engine metrics unknown", "warning"),
        ("engine metrics known", "info"),
    ]
    assert all(metered.engine.url.removeprefix("http://") not in str(entry) for entry in logs)


@virtually
async def test_an_engine_that_is_gone_is_unknown() -> None:
    """No connection is no metrics."""
    metered = Metered(page(3))
    async with metered.engine, polled(vllm(metered)) as seen:
        await seen.until(lambda: len(seen.told) >= 2)
        await metered.engine.stop_listening()
        metered.engine.close_connections()
        await seen.until(lambda: seen.reports[-1] is None)


# ------------------------------------------------------------------------------------------------------ who and where


@virtually
async def test_only_local_engines_that_have_metrics_are_polled() -> None:
    """Cloud providers, plain OpenAI servers and Ollama are left in peace."""
    metered = Metered(page())
    kinds = [Engine.OPENAI, Engine.OLLAMA, Engine.ECHO]
    async with metered.engine:
        others = [replace(vllm(metered), id=kind.value, engine=kind) for kind in kinds]
        async with polled(vllm(metered, tier=Tier.REMOTE), *others) as seen:
            await later(30.0)
    assert metered.polls == []
    assert seen.told == []


@virtually
async def test_tensorrt_is_found_at_either_place() -> None:
    """What the first place does not have is looked for at the second; once found, it is asked there."""
    metered = Metered()
    metered.say = lambda conn: (
        conn.json(404, {})
        if conn.request.path == "/prometheus/metrics"
        else conn.json(200, [{"numActiveRequests": 2, "numQueuedRequests": 1}])
    )
    async with metered.engine, polled(vllm(metered, engine=Engine.TENSORRT)) as seen:
        await seen.until(lambda: len(seen.told) >= 6)
    assert [request.path for _, request in metered.polls[:3]] == ["/prometheus/metrics", "/metrics", "/metrics"]
    assert seen.reports[1:] == [EngineReport(running=2, waiting=1)] * (len(seen.told) - 1)


@virtually
async def test_metrics_at_an_address_of_their_own() -> None:
    """An instance may name a URL on another port; the configured path counts for those that name none."""
    engine, beside = Metered(page(9)), Metered(page(4))
    async with engine.engine, beside.engine:
        instances = (vllm(engine, id="a", metrics=f"{beside.engine.url}/m"), vllm(engine, id="b"))
        async with polled(*instances, settings=ScrapeSettings(path="/own")) as seen:
            await later(2.0)
    assert {request.path for _, request in beside.polls} == {"/m"}
    assert {request.path for _, request in engine.polls} == {"/own"}
    assert {report.running for report in seen.reports if report is not None} == {4, 9}


@virtually
async def test_watching_others_stops_the_polls_of_those_that_left() -> None:
    """A changed or removed instance is no longer polled as it was; an unchanged one goes on undisturbed."""
    stays, goes = Metered(page()), Metered(page())
    async with stays.engine, goes.engine:
        keep = vllm(stays, id="stays")
        async with polled(keep, vllm(goes, id="goes")) as seen:
            await later(2.0)
            seen.scraper.watch([keep])
            before = len(goes.polls)
            await later(5.0)
            assert len(goes.polls) <= before + 1
            assert all(gap <= 0.31 for gap in stays.gaps())
            await seen.scraper.close()
            told = len(seen.told)
            await later(5.0)
            assert len(seen.told) == told


# ------------------------------------------------------------------------------------------------------- a whole engine


@virtually
async def test_the_mock_engine_reports_what_it_does() -> None:
    """With one slot, one request running and two behind it: those numbers, its KV cache in use, and its pace."""
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":400}'
    request = EngineRequest("POST", "/v1/chat/completions", (("content-type", "application/json"),), body)
    async with MockEngine(model="m", slots=1, prefill_tps=1000, decode_tps=50, eos_after=400) as engine:
        instance = Instance(id="gpu", address=engine.url, engine=Engine.VLLM)
        async with polled(instance) as seen:
            await seen.until(lambda: len(seen.told) >= 2)
            assert seen.reports[-1] == EngineReport(running=0, waiting=0, kv=0)
            upstream = Upstream()
            for _ in range(3):
                upstream.open(engine.url, request, Listener(), 5.0)
            await engine.until(lambda stats: stats.running == 1 and stats.waiting == 2)
            told = len(seen.told)
            await seen.until(lambda: len(seen.told) >= told + 4)
            await upstream.close()
    last = seen.reports[-1]
    assert last is not None
    assert (last.running, last.waiting) == (1, 2)
    assert last.kv is not None
    assert 0 < last.kv < 1
    assert last.tpot == pytest.approx(1 / 50, rel=0.2)
