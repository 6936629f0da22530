"""A gateway that is killed or stopped comes back with its instances, its drains, and what it had learned."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import aiohttp

from headrace.model import BreakerState
from headrace.testing import MockEngine, ScriptedEngine, steps
from tests.e2e.client import Heard, chat, client
from tests.e2e.front import front
from tests.e2e.process import Program, serving

RECOVERY = 600
"""Seconds for which a breaker stays open: longer than any machine takes to start a gateway again."""
BROKEN = steps.json(500, {"error": {"message": "boom", "type": "internal_error"}})


def _config(engine: MockEngine | ScriptedEngine) -> str:
    return json.dumps(
        {
            "instances": [{"id": "a", "address": engine.url, "models": ["m"]}],
            "health_check": {"interval_seconds": 3600},
            "dedup": {"mode": "off"},
            "circuit_breaker": {"recovery_timeout": RECOVERY, "max_backoff": RECOVERY},
        }
    )


async def _admin(
    running: Program, method: str, path: str, body: Mapping[str, object] | None = None
) -> dict[str, object]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{running.url}/admin{path}", json=body) as response,
    ):
        assert response.status < 300, await response.text()
        answer: dict[str, object] = await response.json()
        return answer


async def _instances(running: Program) -> dict[str, Mapping[str, object]]:
    listed = (await _admin(running, "GET", "/instances"))["instances"]
    assert isinstance(listed, list)
    return {entry["id"]: entry for entry in listed}


async def _ask(running: Program, number: int = 1) -> list[Heard]:
    async with client(running.url) as caller:
        return [await caller.ask(chat(f"question {one}", stream=True)) for one in range(number)]


async def test_what_was_registered_and_drained_is_so_after_kill_9(tmp_path: Path) -> None:
    """As soon as the admin API has answered, a kill takes nothing away; the file's own instance is the file's."""
    async with MockEngine(model="m", speed=50) as first, MockEngine(model="m", speed=50) as second:
        async with serving(_config(first), tmp_path) as running:
            added = {"id": "b", "address": second.url, "models": ["m"], "max_concurrent": 3, "metadata": {"rack": "7"}}
            assert (await _admin(running, "POST", "/instances", added))["warnings"] == []
            assert (await _admin(running, "PATCH", "/instances/a", {"max_concurrent": 2}))["warnings"] != []
            await _admin(running, "POST", "/instances/a/drain")
            await _admin(running, "POST", "/circuit-breakers/a/trip")
            await running.kill()
        async with serving(_config(first), tmp_path) as running:
            now = await _instances(running)
            assert [(name, entry["source"], entry["draining"]) for name, entry in now.items()] == [
                ("a", "config", True),
                ("b", "admin", False),
            ]
            assert (now["a"]["max_concurrent"], now["b"]["max_concurrent"]) == (10, 3)
            assert now["b"]["metadata"] == {"rack": "7"}
            assert (now["a"]["breaker"], now["b"]["breaker"]) == ("open", "closed")
            assert {heard.headers["x-headrace-instance"] for heard in await _ask(running, 4)} == {"b"}
            await _admin(running, "POST", "/instances/a/undrain")
            await _admin(running, "DELETE", "/instances/b")
            await running.kill()
        async with serving(_config(first), tmp_path) as running:
            assert {name: entry["draining"] for name, entry in (await _instances(running)).items()} == {"a": False}
            assert not running.tracebacks


async def test_what_was_learned_is_known_after_a_stop(tmp_path: Path) -> None:
    """Speed and reliability to the last digit shown, and a breaker that stays open for the rest of its time."""
    async with MockEngine(model="m", speed=20) as first, ScriptedEngine(BROKEN) as second:
        async with serving(_config(first), tmp_path) as running:
            await _admin(running, "POST", "/instances", {"id": "b", "address": second.url, "models": ["m"]})
            await _ask(running, 6)
            await _admin(running, "POST", "/circuit-breakers/b/trip")
            before = await _instances(running)
            running.signal(signal.SIGTERM)
            assert await running.ended() == 0
        async with serving(_config(first), tmp_path) as running:
            after = await _instances(running)
            assert {heard.headers["x-headrace-instance"] for heard in await _ask(running, 3)} == {"a"}
            assert not running.tracebacks
    learned = ("speed_tokens_per_second", "reliability", "breaker")
    for name in "ab":
        assert [after[name][key] for key in learned] == [before[name][key] for key in learned]
    assert before["a"]["speed_tokens_per_second"] is not None
    assert before["b"]["reliability"] != 1.0
    opens_in = after["b"]["breaker_opens_in_seconds"]
    assert isinstance(opens_in, float)
    assert 0 < opens_in <= RECOVERY


async def test_another_process_finds_what_was_written_while_the_first_still_runs(tmp_path: Path) -> None:
    """As after a kill: nothing was closed, and the breaker that opened by itself is open there, too."""
    sections: Mapping[str, Mapping[str, object]] = {
        "dead_letters": {"path": str(tmp_path / "state.db")},
        "routing": {"max_retries": 0},
        "circuit_breaker": {"failure_threshold": 1},
    }
    async with ScriptedEngine(BROKEN) as engine, front(engine, **sections) as first:
        await first.client.ask(chat())
        assert first.instance().breaker is BreakerState.OPEN
        assert await first.headrace.saved()
        async with front(engine, **sections) as second:
            assert second.instance().reliability == first.instance().reliability < 1.0
            assert second.instance().breaker is BreakerState.OPEN
            assert (await second.client.ask(chat())).error["code"] == "circuit_open"
            assert len(engine.requests) == 1


async def test_a_damaged_file_stops_nothing(tmp_path: Path) -> None:
    """The gateway starts with its configuration and says so; what is registered works, and the answer warns of it."""
    (tmp_path / "headrace.db").write_bytes(b"this is no database" * 500)
    async with (
        MockEngine(model="m", speed=50) as first,
        MockEngine(model="m", speed=50) as second,
        serving(_config(first), tmp_path) as running,
        client(running.url) as caller,
    ):
        added = await _admin(running, "POST", "/instances", {"id": "b", "address": second.url, "models": ["m"]})
        assert "forgotten when headrace is restarted" in str(added["warnings"])
        assert [heard.status for heard in await _ask(running, 4)] == [200] * 4
        assert b"headrace_instance_memory_degraded 1.0" in (await caller.get("/metrics")).body
        await running.logged("what is known of the instances cannot be kept")
        assert not running.tracebacks


async def test_a_locked_file_holds_the_end_up_once(tmp_path: Path) -> None:
    """Somebody else writes the file and does not stop: what cannot be kept is told once, and the process ends in time
    and in order."""
    once = {"routing": {"max_retries": 0}}
    async with (
        ScriptedEngine(BROKEN) as engine,
        serving(json.dumps({**json.loads(_config(engine)), **once}), tmp_path) as running,
    ):
        await _ask(running)
        with closing(sqlite3.connect(tmp_path / "headrace.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            await _ask(running)
            running.signal(signal.SIGTERM)
            assert await running.ended() == 0
    lost = [line for line in running.log if "cannot be" in line]
    assert len(lost) == 2, "dead letters, and what is known of the instances"
    assert not [line for line in running.log if "did not close in time" in line]
    assert not running.tracebacks
