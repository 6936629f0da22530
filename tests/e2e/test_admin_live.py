"""The gateway is operated while it works: engines come, rest, go and are told apart, and no request notices."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

import aiohttp
import pytest

from headrace.model import BreakerState
from headrace.testing import MockEngine, ScriptedEngine, steps
from tests.e2e.client import chat
from tests.e2e.front import Front, front
from tests.runtime.virtual import later, virtually


class Operator:
    """Uses the admin API of a front."""

    def __init__(self, to: Front) -> None:
        self._url = to.client.url

    async def do(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> tuple[int, dict[str, object]]:
        """Status and body of one request."""
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"{self._url}/admin{path}", json=body) as response,
        ):
            answer: dict[str, object] = await response.json()
            return response.status, answer


async def where(to: Front, count: int) -> Counter[str]:
    """Which instances answer `count` requests."""
    answers = [await to.client.ask(chat(f"question {number}")) for number in range(count)]
    assert {answer.status for answer in answers} == {200}
    return Counter(answer.headers["x-headrace-instance"] for answer in answers)


async def test_an_engine_that_is_added_is_used_at_once_and_one_that_is_removed_no_more() -> None:
    """The second engine gets its half of the requests; removed again, it gets nothing, and no request fails."""
    async with MockEngine(model="m", speed=50) as first, MockEngine(model="m", speed=50) as second, front(first) as to:
        operator = Operator(to)
        assert await where(to, 4) == {"a": 4}
        status, answer = await operator.do("POST", "/instances", {"id": "b", "address": second.url, "models": ["m"]})
        assert (status, answer["warnings"]) == (201, [])
        assert set(await where(to, 12)) == {"a", "b"}
        assert second.stats.finished > 0
        listed = await to.client.get("/v1/models")
        assert [entry["id"] for entry in listed.json["data"]] == ["m"]
        status, _ = await operator.do("POST", "/instances", {"address": second.url + "/v1/", "models": ["m"]})
        assert status == 409
        assert (await operator.do("DELETE", "/instances/b"))[0] == 200
        before = second.stats.finished
        assert await where(to, 4) == {"a": 4}
        assert second.stats.finished == before
        await to.idle()


async def test_a_model_that_comes_with_an_engine_is_served_from_then_on() -> None:
    """404 before, answered after, 404 again when its engine is gone."""
    async with MockEngine(model="m") as first, MockEngine(model="new", speed=50) as second, front(first) as to:
        operator, asked = Operator(to), chat("hi", model="new")
        assert (await to.client.ask(asked)).status == 404
        await operator.do("POST", "/instances", {"id": "b", "address": second.url, "models": ["new"]})
        assert (await to.client.ask(asked)).status == 200
        assert [entry["id"] for entry in (await to.client.get("/v1/models")).json["data"]] == ["m", "new"]
        await operator.do("DELETE", "/instances/b")
        assert (await to.client.ask(asked)).status == 404
        await to.idle()


async def test_a_drained_engine_ends_its_streams_and_gets_nothing_new() -> None:
    """The stream that runs there comes to its end, new requests go elsewhere, undrained it is used again."""
    go_on = asyncio.Event()
    script = [
        steps.chunk("one "),
        steps.wait(go_on.wait),
        steps.chunk("two"),
        steps.finish(),
        steps.done(),
        steps.end(),
    ]
    async with ScriptedEngine(script) as first, MockEngine(model="m", speed=50) as second, front(first) as to:
        operator = Operator(to)
        stream = asyncio.create_task(to.client.ask(chat("long", stream=True)))
        await to.until(lambda: to.instance("a").in_flight == 1, "the stream runs at a")
        status, answer = await operator.do("POST", "/instances/a/drain")
        entry = answer["instance"]
        assert isinstance(entry, dict)
        assert (status, entry["draining"], entry["in_flight"]) == (200, True, 1)
        await operator.do("POST", "/instances", {"id": "b", "address": second.url, "models": ["m"]})
        assert await where(to, 3) == {"b": 3}
        assert to.instance("a").in_flight == 1
        go_on.set()
        heard = await stream
        assert (heard.done, heard.text, heard.headers["x-headrace-instance"]) == (True, "one two", "a")
        await operator.do("POST", "/instances/a/undrain")
        await operator.do("POST", "/instances/b/drain")
        assert (await to.client.ask(chat("again", stream=True))).headers["x-headrace-instance"] == "a"
        await to.idle()


async def test_breakers_worked_by_hand_turn_requests_away_and_let_them_back() -> None:
    """Tripped, an engine gets nothing; the only one tripped, callers are told 503; reset, all is as before."""
    async with MockEngine(model="m", speed=50) as first, MockEngine(model="m", speed=50) as second, front(first) as to:
        operator = Operator(to)
        await operator.do("POST", "/instances", {"id": "b", "address": second.url, "models": ["m"]})
        await operator.do("POST", "/circuit-breakers/a/trip")
        assert await where(to, 4) == {"b": 4}
        await operator.do("POST", "/circuit-breakers/b/trip")
        refused = await to.client.ask(chat("nobody"))
        assert (refused.status, refused.error["code"]) == (503, "circuit_open")
        assert int(refused.headers["retry-after"]) >= 1
        await operator.do("POST", "/circuit-breakers/a/reset")
        assert to.instance("a").breaker is BreakerState.CLOSED
        assert await where(to, 4) == {"a": 4}
        await to.idle()


async def test_the_numbers_are_those_of_what_happened() -> None:
    """Latencies and first tokens of answered streams, by instance and overall; totals; what waits, by user."""
    async with MockEngine(model="m", speed=50) as engine, front(engine) as to:
        operator = Operator(to)
        for _ in range(5):
            assert (await to.client.ask(chat("hi", stream=True))).done
        _, summary = await operator.do("GET", "/metrics/summary")
        overall, instances = summary["overall"], summary["instances"]
        assert isinstance(overall, dict)
        assert isinstance(instances, list)
        for part in (overall, instances[0]):
            assert part["latency"]["count"] == part["time_to_first_token"]["count"] == 5
            assert 0 < part["time_to_first_token"]["p50"] <= part["latency"]["p50"] <= part["latency"]["p99"]
        _, status = await operator.do("GET", "/status")
        totals = status["totals"]
        assert isinstance(totals, dict)
        assert totals["answered"] == 5
        await to.idle()


@pytest.mark.slow
@virtually
async def test_a_flood_asks_for_more_engines_and_a_quiet_time_for_fewer() -> None:
    """Two engines and sixty users: more are asked for, twice the same; quiet minutes later, fewer; never to and fro."""
    bounds = {"min_instances": 1, "max_instances": 6, "window_seconds": 60, "cooldown_seconds": 120}
    async with (
        MockEngine(model="m", slots=2, decode_tps=40, eos_after=100) as first,
        MockEngine(model="m", slots=2, decode_tps=40, eos_after=100) as second,
        front(first, second, instances={"max_concurrent": 2}, scaling=bounds, timeouts={"queue": 600}) as to,
    ):
        operator = Operator(to)
        flood = [
            asyncio.create_task(to.client.ask(chat(f"{number}"), {"x-headrace-user": f"u{number}"}))
            for number in range(60)
        ]
        await to.until(lambda: to.headrace.snapshot().queued >= 40, "the flood waits")
        await later(20)
        advice = [(await operator.do("GET", "/scaling/evaluate"))[1] for _ in range(2)]
        assert [(one["action"], one["desired"]) for one in advice] == [("scale_up", 6)] * 2
        await asyncio.gather(*flood)
        for _ in range(20):
            await later(30)
            advice.append((await operator.do("GET", "/scaling/evaluate"))[1])
        actions = [str(one["action"]) for one in advice]
        assert actions[-1] == "scale_down"
        assert actions == sorted(actions, key=["scale_up", "none", "scale_down"].index)
