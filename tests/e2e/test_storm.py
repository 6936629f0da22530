"""Everything goes wrong at once, for a while: afterwards the books balance and nothing is held."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.testing import MockEngine
from tests.e2e.client import chat
from tests.e2e.front import Front, front
from tests.patience import GUARD
from tests.runtime.virtual import later, virtually

CALLERS = 40
ARMED = 6
"""Faults that wait at one engine at most: between them it answers."""
SEED = 20_261_130
SECTIONS: Mapping[str, Mapping[str, object]] = {
    "scheduling": {"queue_size": 24, "per_user_queue": 8},
    "instances": {"max_concurrent": 6},
    "timeouts": {"connect": 1, "first_token": 0.3, "idle": 0.3, "attempt": 1, "queue": 0.5},
    "load_balancer": {"cooldown_seconds": 0.02, "cooldown_cap_seconds": 0.1},
    "routing": {"backoff_seconds": 0.01, "longest_wait_seconds": 0.2, "retry_budget": 0.5},
    "circuit_breaker": {"failure_threshold": 4, "recovery_timeout": 0.1, "max_backoff": 2},
    "health_check": {"interval_seconds": 0.2, "timeout_seconds": 0.1, "unhealthy_threshold": 2},
    "dedup": {"mode": "full", "ttl_seconds": 0.2},
    "dead_letters": {"path": None, "capacity": 100},
}
FAULTS: tuple[Mapping[str, object], ...] = (
    {"name": "fail", "status": 500},
    {"name": "fail", "status": 400},
    {"name": "fail", "status": 401},
    {"name": "fail", "status": 503},
    {"name": "rate_limit", "retry_after": "0.05"},
    {"name": "rate_limit", "retry_after": "99999"},
    {"name": "hang"},
    {"name": "slow", "seconds": 0.1},
    {"name": "stall", "after": 2, "seconds": 0.5},
    {"name": "cut", "after": 0},
    {"name": "cut", "after": 3},
    {"name": "reset"},
    {"name": "reset", "after": 2},
    {"name": "garbage"},
    {"name": "garbage", "form": "html"},
    {"name": "error_event"},
    {"name": "error_event", "after": 2, "type": "rate_limit_error"},
    {"name": "fail", "status": 503, "scope": "health"},
    {"name": "hang", "scope": "health", "for_seconds": 0.1},
)


async def _caller(
    gate: Front, engines: list[MockEngine], random: Random, until: float, pause: float, seen: Counter[str]
) -> None:
    """Asks one thing after another, breaks something at times, and leaves when it feels like it."""
    loop = asyncio.get_running_loop()
    while loop.time() < until:
        engine = random.choice(engines)
        if random.random() < 0.3 and len(engine.faults.armed(loop.time())) < ARMED:
            fault = dict(random.choice(FAULTS))
            engine.inject(str(fault.pop("name")), **{"count": 1, **fault})
        body = chat(
            f"{random.randrange(40)}",
            stream=random.random() < 0.6,
            max_tokens=random.randint(1, 12),
            temperature=random.choice((0, 1)),
        )
        headers = {"x-headrace-user": f"u{random.randrange(6)}"}
        if random.random() < 0.1:
            headers["x-headrace-deadline"] = f"{random.random() / 4:.3f}"
        patience = random.random() / 10 if random.random() < 0.25 else GUARD
        try:
            async with asyncio.timeout(patience):
                answer = await gate.client.ask(body, headers)
        except TimeoutError:
            assert patience < GUARD, "an answer never came"
            seen["left"] += 1
        else:
            seen[f"{answer.status}"] += 1
        if pause:
            await later(random.random() * pause)


async def _storm(seconds: float, pause: float = 0.0) -> Counter[str]:
    """Let it blow for so long, then check that the books balance; what the callers saw.

    On virtual time callers must `pause` for up to so long between two questions: no time passes while they are refused.
    """
    seen: Counter[str] = Counter()
    mistakes: list[dict[str, Any]] = []
    loop, random = asyncio.get_running_loop(), Random(SEED)
    loop.set_exception_handler(lambda _, context: mistakes.append(context))
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(MockEngine(model="m", slots=4, queue=4, speed=10, decode_tps=40))
            for _ in range(3)
        ]
        logs = stack.enter_context(capture_logs())
        gate = await stack.enter_async_context(front(*engines, **SECTIONS))
        until = loop.time() + seconds
        callers = [_caller(gate, engines, Random(random.random()), until, pause, seen) for _ in range(CALLERS)]
        await asyncio.gather(*callers)
        await gate.idle()
        for engine in engines:
            await engine.until(lambda stats: (stats.running, stats.waiting) == (0, 0))
        totals, metrics = gate.totals, (await gate.client.get("/metrics")).body.decode()

    assert mistakes == []
    assert [entry for entry in logs if "exc_info" in entry or entry["log_level"] in ("error", "critical")] == []
    assert totals["accepted"] == totals["answered"] + totals["failed"] + totals["cancelled"]
    assert totals["accepted"] + totals["refused"] <= seen.total()
    counted = re.findall(r"^headrace_requests_total{.*} (\S+)$", metrics, re.MULTILINE)
    assert sum(map(float, counted)) == totals["accepted"] + totals["refused"]
    assert set(re.findall(r"^headrace_inflight{.*} (\S+)$", metrics, re.MULTILINE)) == {"0.0"}
    assert totals["answered"] > 0
    assert totals["cancelled"] > 0
    assert totals["failed"] > 0
    return seen


@virtually
async def test_a_short_storm_leaves_nothing_behind() -> None:
    """Three seconds of faults and callers who leave: accepted is answered + failed + cancelled, every count is back
    at zero, no traceback is logged, and no caller sees a status that is not in the book."""
    seen = await _storm(3.0, pause=0.05)

    assert set(seen) <= {"left", "200", "400", "429", "502", "503", "504"}


@pytest.mark.slow
async def test_a_long_storm_leaves_nothing_behind() -> None:
    """The same for a minute."""
    seen = await _storm(60.0)

    assert set(seen) <= {"left", "200", "400", "429", "502", "503", "504"}
