"""Engines' own metrics in a whole gateway: shown, aged, and never a reason to refuse or to forget an engine."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.testing import MockEngine, Script, steps
from tests.e2e.client import Client, Heard, chat
from tests.e2e.front import Front, front
from tests.runtime.metered import NOT_FOUND, Metered, page
from tests.runtime.virtual import later, virtually

VLLM = {"engine": "vllm", "max_concurrent": 64, "window_tokens": None}
GONE = [steps.json(500, {}), steps.whole(200, b"<html>down for maintenance</html>"), steps.hang()]


async def gauges(caller: Client, name: str) -> dict[str, float]:
    """The gauge of that name, by instance, as Prometheus would see it."""
    text = (await caller.get("/metrics")).body.decode()
    return {
        sample.labels["instance"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"headrace_{name}"
    }


async def known(gateway: Front, name: str = "a") -> None:
    """Wait until the instance's metrics say something."""
    await gateway.until(lambda: gateway.instance(name).metrics_age is not None, "the engine's metrics are read")


@virtually
async def test_what_an_engine_says_is_shown() -> None:
    """Its own queue and KV cache stand in `/metrics`, with their age and whether they are to be trusted."""
    metered = Metered(page(3, 2, 0.75))
    async with metered.engine, front(metered.engine, instances=VLLM) as gateway:
        await known(gateway)
        assert await gauges(gateway.client, "engine_waiting") == {"a": 2}
        assert await gauges(gateway.client, "engine_kv_usage") == {"a": 0.75}
        assert await gauges(gateway.client, "engine_metrics_stale") == {"a": 0}
        assert (await gauges(gateway.client, "engine_metrics_age_seconds"))["a"] < 0.75


@pytest.mark.parametrize("bad", GONE, ids=["500", "html", "hang"])
@virtually
async def test_old_numbers_are_marked_and_one_good_poll_is_enough(bad: Script) -> None:
    """Without fresh numbers the flag is 1, the age rises and the old ones are not shown; then all is as before."""
    metered = Metered(page(0, 0, 0.0))
    async with metered.engine, front(metered.engine, instances=VLLM) as gateway:
        await known(gateway)
        metered.say = bad
        await later(2.0)
        first = (await gauges(gateway.client, "engine_metrics_age_seconds"))["a"]
        assert await gauges(gateway.client, "engine_metrics_stale") == {"a": 1}
        assert await gauges(gateway.client, "engine_waiting") == {}
        await later(10.0)
        assert (await gauges(gateway.client, "engine_metrics_age_seconds"))["a"] >= first + 9.9
        metered.say = page(0, 1, 0.5)
        await gateway.until(lambda: not gateway.instance().metrics_stale, "the metrics are trusted again")
        assert (await gauges(gateway.client, "engine_metrics_age_seconds"))["a"] < 0.75
        assert await gauges(gateway.client, "engine_waiting") == {"a": 1}


@pytest.mark.parametrize("bad", [*GONE, NOT_FOUND], ids=["500", "html", "hang", "404"])
@pytest.mark.parametrize("had", [True, False])
@virtually
async def test_requests_go_on_without_metrics(bad: Script, had: bool) -> None:
    """The only engine stops reporting, or never did: no request is refused, the gateway's own counts decide."""
    metered = Metered(page(0, 0, 0.0) if had else bad)
    async with metered.engine, front(metered.engine, instances=VLLM) as gateway:
        if had:
            await known(gateway)
            metered.say = bad
        await later(6.0)
        answers = await asyncio.gather(*(gateway.client.ask(chat(f"hi {number}")) for number in range(20)))
        assert [answer.status for answer in answers] == [200] * 20
        await gateway.idle()


async def shares(gateway: Front, *engines: Metered) -> tuple[int, ...]:
    """How many of twelve streams each engine has when all have begun and none has ended; all of them are answered.

    The next is asked once the one before has begun: how many requests may stand unread before an engine is not the
    question here.
    """
    held = asyncio.Event()
    for engine in engines:
        engine.answer = [steps.chunk("begun"), steps.wait(held.wait), steps.finish(), steps.done(), steps.end()]
    names = "abcdefgh"[: len(engines)]
    asked: list[asyncio.Task[Heard]] = []
    for number in range(12):
        asked.append(asyncio.create_task(gateway.client.ask(chat(f"hi {number}", stream=True))))
        await gateway.until(
            lambda: (
                sum(gateway.instance(name).in_flight for name in names) == len(asked)
                and not any(gateway.instance(name).unstarted_tokens for name in names)
            ),
            "the engine has begun to answer",
        )
    found = tuple(gateway.instance(name).in_flight for name in names)
    held.set()
    assert all([(await answer).done for answer in asked])
    return found


@virtually
async def test_a_new_engine_without_any_sample_gets_its_share() -> None:
    """Of two engines the second never reported anything: it gets half, give or take two; not all, not none."""
    reports, silent = Metered(page(0, 0, 0.0)), Metered(steps.hang())
    async with reports.engine, silent.engine, front(reports.engine, silent.engine, instances=VLLM) as gateway:
        await known(gateway)
        first, second = await shares(gateway, reports, silent)
    assert first + second == 12
    assert 4 <= second <= 8


@pytest.mark.parametrize("bad", GONE, ids=["500", "html", "hang"])
@virtually
async def test_an_engine_that_stopped_reporting_attracts_nothing_by_its_old_numbers(bad: Script) -> None:
    """It said that it is idle, long ago; the other says now that it is half busy: it gets at least as many."""
    silent, reports = Metered(page(0, 0, 0.0)), Metered(page(5, 0, 0.5))
    async with silent.engine, reports.engine, front(silent.engine, reports.engine, instances=VLLM) as gateway:
        await known(gateway)
        silent.say = bad
        await later(6.0)
        assert gateway.instance("a").metrics_stale
        first, second = await shares(gateway, silent, reports)
    assert second >= first


@virtually
async def test_reading_can_be_switched_off() -> None:
    """Then no engine is asked, and nothing is shown of it."""
    metered = Metered(page(3, 2, 0.5))
    async with metered.engine, front(metered.engine, instances=VLLM, metrics={"enabled": False}) as gateway:
        await later(5.0)
        assert metered.polls == []
        assert await gauges(gateway.client, "engine_metrics_stale") == {"a": 0}
        assert await gauges(gateway.client, "engine_metrics_age_seconds") == {}


@virtually
async def test_the_mock_engine_is_read() -> None:
    """What the shipped engine says of itself is what the gateway shows of it."""
    async with MockEngine(model="m", slots=2) as engine, front(engine, instances=VLLM) as gateway:
        await known(gateway)
        view = gateway.instance()
        assert (view.metrics_stale, view.engine_waiting, view.engine_kv) == (False, 0, 0)
