"""What the gateway adds, against a direct connection and against a bare aiohttp pass-through."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
def process(core: int, port: int, *command: str) -> Iterator[int]:
    """A process pinned to `core` that listens on `port`, ended afterwards; gives its id."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        os.sched_setaffinity(child.pid, {core % (os.cpu_count() or 1)})
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        else:
            raise RuntimeError(f"{command[0]} does not listen")
        yield child.pid
    finally:
        child.terminate()
        child.wait(20)


@dataclass
class Way:
    """What was seen of one way to the engine, a value per round."""

    port: int
    process: int
    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    singles: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)

    def values(self) -> dict[str, float]:
        """Requests per second, processor time per request, percentiles of a request and of a chunk's delay."""
        return {
            "rps": statistics.median(self.rates),
            "cpu_us": statistics.median(self.cpu) * 1e6,
            "p50_us": percentile(self.singles, 0.5) * 1e6,
            "p99_us": percentile(self.singles, 0.99) * 1e6,
            "chunk_p50_us": percentile(self.delays, 0.5) * 1e6,
            "chunk_p99_us": percentile(self.delays, 0.99) * 1e6,
        }


def run(quick: bool = False) -> list[Report]:
    """The three ways in turn, several rounds, so that other work on the machine burdens them alike."""
    os.sched_setaffinity(0, {1 % (os.cpu_count() or 1)})
    titles = ("req/s, 32 conns", "cpu us", "p50 us, 1 conn", "p99 us", "chunk p50 us", "chunk p99 us")
    report = Report("Overhead", ("way", *titles))
    python = sys.executable
    engine, plain, gateway = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "bench.yaml"
        config.write_text(_CONFIG.format(port=gateway, engine=engine))
        with (
            process(1, engine, python, "-m", "benchmarks.engine", str(engine)) as direct,
            process(0, plain, python, "-m", "benchmarks.passthrough", str(plain), f"http://127.0.0.1:{engine}") as bare,
            process(0, gateway, str(Path(python).parent / "headrace"), "serve", "--config", str(config)) as full,
        ):
            ways = {"direct": Way(engine, direct), "pass-through": Way(plain, bare), "headrace": Way(gateway, full)}
            uvloop.run(_rounds(ways, *((400, 1) if quick else (3000, 5))))
    _tell(report, ways)
    return [report]


def _tell(report: Report, ways: dict[str, Way]) -> None:
    results = {name: way.values() for name, way in ways.items()}
    for name, values in results.items():
        report.rows.append((name, *(f"{value:,.0f}" for value in values.values())))
        report.numbers |= {f"{name}_{key}": value for key, value in values.items()}
    direct, bare, full = results["direct"], results["pass-through"], results["headrace"]
    rounds = zip(ways["headrace"].rates, ways["pass-through"].rates, strict=True)
    share = statistics.median(ours / theirs for ours, theirs in rounds)
    report.numbers["share_of_pass_through"] = share
    report.numbers["share_by_cpu"] = bare["cpu_us"] / full["cpu_us"] if full["cpu_us"] else 0.0
    request, chunk = full["p50_us"] - direct["p50_us"], full["chunk_p50_us"] - direct["chunk_p50_us"]
    report.notes.append(f"headrace serves {share:.0%} of the bare pass-through's requests per second (aim: 60 %).")
    report.notes.append(f"By processor time per request: {report.numbers['share_by_cpu']:.0%}.")
    report.notes.append(f"Added to a direct connection: {request:,.0f} us per request, {chunk:,.0f} us per chunk.")


async def _rounds(ways: dict[str, Way], requests: int, rounds: int) -> None:
    for way in ways.values():
        await drive(way.port, 8, bodies(200))
    for _ in range(rounds):
        for way in ways.values():
            before = _cpu(way.process)
            seconds, _, took = await drive(way.port, 32, bodies(requests))
            way.cpu.append((_cpu(way.process) - before) / requests)
            way.rates.append(len(seconds) / took)
            seconds, _, _ = await drive(way.port, 1, bodies(requests // 4))
            way.singles += seconds
            _, delays, _ = await drive(way.port, 20, bodies(20, stream=True, tokens=requests // 30, gap_us=20_000))
            way.delays += delays


def _cpu(process: int) -> float:
    """Processor seconds of a process so far; 0 where there is no /proc."""
    stat = Path(f"/proc/{process}/stat")
    if not stat.exists():
        return 0.0
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
