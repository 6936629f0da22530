"""Several worker processes behind one port, as real processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.testing import MockEngine
from tests.e2e.client import Client, Heard, chat, client
from tests.e2e.process import Program, run, serving
from tests.patience import GUARD

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux deals connections out to processes")

WORKERS, REQUESTS = 2, 24


def _config(engine: MockEngine | None) -> str:
    address = "http://127.0.0.1:9" if engine is None else engine.url
    return json.dumps(
        {
            "server": {"workers": WORKERS},
            "instances": [{"id": "a", "address": address, "models": ["m"], "max_concurrent": 7}],
            "dead_letters": {"path": "letters.db"},
            "dedup": {"mode": "off"},
            "routing": {"max_retries": 0},
            "load_balancer": {"cooldown_seconds": 0.01},
            "circuit_breaker": {"failure_threshold": 1000},
        }
    )


async def _samples(caller: Client, name: str) -> dict[str, float]:
    """Values of a metric by worker."""
    page = (await caller.get("/metrics")).body.decode()
    found = re.findall(rf'^{name}{{worker="(\d+)"[^}}]*}} (\S+)$', page, re.MULTILINE)
    return {worker: float(value) for worker, value in found}


async def _ask_once(url: str, number: int) -> Heard:
    """A request on a connection of its own: the system deals out connections, not requests."""
    async with client(url) as caller:
        return await caller.ask(chat(f"question {number}"))


async def _until(what: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it is so."""
    async with asyncio.timeout(GUARD):
        while not await what():
            pass


async def _all_up(caller: Client) -> bool:
    return sum((await _samples(caller, "headrace_worker_up")).values()) == WORKERS


async def _counted(caller: Client) -> bool:
    """Whether every request is; a busy worker may be missing from a page."""
    return sum((await _samples(caller, "headrace_requests_total")).values()) == REQUESTS


async def test_requests_are_shared_out_and_counted_together(tmp_path: Path) -> None:
    """Answers come from several processes, `/metrics` of any shows all of them, each with its part of the places, and
    SIGTERM ends them all well."""
    async with MockEngine(model="m") as engine, serving(_config(engine), tmp_path) as gateway:
        async with client(gateway.url) as caller:
            await _until(lambda: _all_up(caller))
            places = await _samples(caller, r"headrace_stage_capacity")
            assert set(places) == {"0", "1"}
        answers = await asyncio.gather(*(_ask_once(gateway.url, number) for number in range(REQUESTS)))
        assert {answer.status for answer in answers} == {200}
        async with client(gateway.url) as caller:
            await _until(lambda: _counted(caller))
            assert len(await _samples(caller, "headrace_requests_total")) > 1
            refused = await caller.send(b"{}", path="/admin/instances/a/drain")
            assert refused.status == 409
            assert "workers" in refused.json["error"]["message"]
        gateway.signal(signal.SIGTERM)
        assert await gateway.ended() == 0
    assert not gateway.tracebacks


@pytest.mark.slow
async def test_a_killed_worker_comes_back(tmp_path: Path) -> None:
    """A worker that dies is started again, and the others serve meanwhile."""
    async with MockEngine(model="m") as engine, serving(_config(engine), tmp_path) as gateway:
        async with client(gateway.url) as caller:
            await _until(lambda: _all_up(caller))
        victim = _children(gateway)[0]
        os.kill(victim, signal.SIGKILL)
        await gateway.logged("started again")
        async with client(gateway.url) as caller:
            assert (await caller.ask(chat())).status == 200
            await _until(lambda: _all_up(caller))
        assert victim not in _children(gateway)
        gateway.signal(signal.SIGTERM)
        assert await gateway.ended() == 0


@pytest.mark.slow
async def test_workers_do_not_outlive_their_supervisor(tmp_path: Path) -> None:
    """Killed without a chance to tell anybody, it leaves nobody behind: the workers drain and go."""
    async with serving(_config(None), tmp_path) as gateway:
        async with client(gateway.url) as caller:
            await _until(lambda: _all_up(caller))
        workers = _children(gateway)
        gateway.signal(signal.SIGKILL)
        await gateway.ended()  # the pipes of its output end with the last worker
        async with asyncio.timeout(GUARD):
            while any(map(_runs, workers)):  # noqa: ASYNC110 - nothing tells of the end of somebody else's child
                await asyncio.sleep(0)


@pytest.mark.slow
async def test_letters_of_all_workers_lie_together(tmp_path: Path) -> None:
    """What no worker could get answered is found in one file, each letter once."""
    async with serving(_config(None), tmp_path) as gateway:
        for number in range(12):
            async with client(gateway.url) as caller:
                assert (await caller.ask(chat(f"question {number}"))).status >= 500
        gateway.signal(signal.SIGTERM)
        assert await gateway.ended() == 0
    code, lines, trouble = await run("dlq", "export", "--db", "letters.db", cwd=tmp_path)
    assert (code, trouble) == (0, "")
    letters = [json.loads(line) for line in lines.splitlines()]
    assert len(letters) == len({letter["id"] for letter in letters}) == 12


@pytest.mark.slow
async def test_a_taken_port_is_said_before_anything_starts(tmp_path: Path) -> None:
    """Two gateways never share a port by accident, workers or not."""
    async with serving(_config(None), tmp_path) as gateway:
        port = gateway.url.rsplit(":", 1)[1]
        code, _, trouble = await run("serve", "--config", "headrace.yaml", "--port", port, cwd=tmp_path)
        assert code != 0
        assert "cannot listen" in trouble


def _runs(process: int) -> bool:
    """Whether it lives; one that ended may still be listed until its parent has looked."""
    status = Path(f"/proc/{process}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def _children(gateway: Program) -> list[int]:
    pid = gateway._process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
