"""The way of a user who asks whether another policy would have been better: serve, record, simulate."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import client
from tests.e2e.flood import Load, crowd
from tests.e2e.process import mock_engine, program, run

LOAD = Load(flood=60, light=6, output=32)
JOURNAL = "traffic.ndjson"

pytestmark = pytest.mark.slow


async def _record(cwd: Path) -> None:
    """A flood and a light user through `headrace serve --journal`, which is then stopped."""
    async with mock_engine(cwd, "--model", "m", "--slots", "4", "--speed", "4") as engine:
        instance = {"id": "a", "engine": "vllm", "address": engine.url, "models": ["m"], "max_concurrent": 64}
        config = {"instances": [instance], "dead_letters": {"path": None}}
        (cwd / "headrace.yaml").write_text(json.dumps(config))
        serve = ("serve", "--config", "headrace.yaml", "--port", "0", "--journal", JOURNAL)
        async with program(*serve, cwd=cwd) as gateway, client(await gateway.listens()) as caller:
            assert (await crowd(caller, LOAD)).all_answered
            gateway.signal(signal.SIGTERM)
            assert await gateway.ended() == 0


async def test_recorded_traffic_is_tried_under_other_policies(tmp_path: Path) -> None:
    """One short real run, then three policies on it: each is asked all that was asked, answers it, and shows that the
    light user waits least where users take turns or pay by tokens. A file with machines alone says who else answers."""
    await _record(tmp_path)
    text = (tmp_path / JOURNAL).read_text()
    assert "power" not in text
    assert len(text.splitlines()) == 1 + LOAD.flood + LOAD.light

    code, out, log = await run(
        "simulate", "--journal", JOURNAL, "--policy", "fair,round_robin,fifo", "--json", cwd=tmp_path
    )
    assert code == 0, log
    found: dict[str, dict[str, Any]] = {}
    for line in out.splitlines():
        document = json.loads(line)
        found[document["policy"]] = document["metrics"]
    assert list(found) == ["fair", "round_robin", "fifo"]
    for metrics in found.values():
        assert metrics["asked"] == metrics["answered"] == LOAD.flood + LOAD.light
        assert (metrics["asked[heaviest]"], metrics["asked[middle]"]) == (LOAD.flood, LOAD.light)
    for policy in ("fair", "round_robin"):
        assert found[policy]["ttft_p50[middle]"] <= 0.5 * found["fifo"]["ttft_p50[middle]"]

    (tmp_path / "machines.yaml").write_text("machines:\n  - {name: gpu, profile: a100, count: 2, limit: 64}\n")
    code, out, log = await run("simulate", "machines.yaml", "--journal", JOURNAL, "--policy", "fair,fifo", cwd=tmp_path)
    assert code == 0, log
    assert "machines+traffic" in out
    assert "66 requests of 2 users" in out
