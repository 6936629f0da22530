"""What the gateway adds, against a direct connection and against a bare aiohttp pass-through."""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from benchmarks.load import bodies, drive
from benchmarks.report import Report, percentile

_CONFIG = """
server: {{port: {port}, log_level: warning}}
scheduling: {{queue_size: 4096, per_user_queue: 4096}}
instances:
  - {{id: bench, address: "http://127.0.0.1:{engine}", models: [bench], max_concurrent: 4096, window_tokens: null}}
health_check: {{interval_seconds: 3600}}
dead_letters: {{path: null}}
"""


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(core: int, port: int, *command: str) -> Iterator[None]:
    """A process pinned to `core` that listens on `port`, ended afterwards."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        os.sched_setaffinity(child.pid, {core % (os.cpu_count() or 1)})
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        else:
            raise RuntimeError(f"{command[0]} does not listen")
        yield
    finally:
        child.terminate()
        child.wait(20)


def run(quick: bool = False) -> Report:
    """Requests per second, latency and delay of a chunk, for each of the three."""
    os.sched_setaffinity(0, {1 % (os.cpu_count() or 1)})
    report = Report("Overhead", ("way", "req/s, 32 conns", "p50 us, 1 conn", "p99 us", "chunk p50 us", "chunk p99 us"))
    python = sys.executable
    engine, plain, gateway = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "bench.yaml"
        config.write_text(_CONFIG.format(port=gateway, engine=engine))
        with (
            process(1, engine, python, "-m", "benchmarks.engine", str(engine)),
            process(0, plain, python, "-m", "benchmarks.passthrough", str(plain), f"http://127.0.0.1:{engine}"),
            process(0, gateway, str(Path(python).parent / "headrace"), "serve", "--config", str(config)),
        ):
            ways = {"direct": engine, "pass-through": plain, "headrace": gateway}
            results = {name: _measure(port, quick) for name, port in ways.items()}
    for name, values in results.items():
        report.rows.append((name, *(f"{value:,.0f}" for value in values)))
        keys = ("rps", "p50_us", "p99_us", "chunk_p50_us", "chunk_p99_us")
        report.numbers |= {f"{name}_{key}": value for key, value in zip(keys, values, strict=True)}
    direct, bare, full = results["direct"], results["pass-through"], results["headrace"]
    report.numbers["share_of_pass_through"] = full[0] / bare[0]
    share, request, chunk = full[0] / bare[0], full[1] - direct[1], full[3] - direct[3]
    report.notes.append(f"headrace serves {share:.0%} of the bare pass-through's requests per second (aim: 60 %).")
    report.notes.append(f"Added to a direct connection: {request:,.0f} us per request, {chunk:,.0f} us per chunk.")
    return report


def _measure(port: int, quick: bool) -> tuple[float, float, float, float, float]:
    requests, rounds = (400, 1) if quick else (3000, 3)
    return uvloop.run(_rounds(port, requests, rounds))


async def _rounds(port: int, requests: int, rounds: int) -> tuple[float, float, float, float, float]:
    await drive(port, 8, bodies(200))
    rates, singles, delays = [], [], []
    for _ in range(rounds):
        seconds, _, took = await drive(port, 32, bodies(requests))
        rates.append(len(seconds) / took)
        seconds, _, _ = await drive(port, 1, bodies(requests // 4))
        singles += seconds
        _, chunk_delays, _ = await drive(port, 20, bodies(20, stream=True, tokens=requests // 30, gap_us=20_000))
        delays += chunk_delays
        await asyncio.sleep(0)
    p50, p99 = percentile(singles, 0.5) * 1e6, percentile(singles, 0.99) * 1e6
    return statistics.median(rates), p50, p99, percentile(delays, 0.5) * 1e6, percentile(delays, 0.99) * 1e6
