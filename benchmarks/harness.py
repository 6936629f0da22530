"""headrace beside other gateways, driven by a harness that is not part of this repository.

The harness is a folder, named by `HEADRACE_BENCH_HARNESS`, with a `bench.py`, its `targets.json`, and a mock engine and
a load generator in C, fast enough that only the gateways are measured. `HEADRACE_BENCH_PEERS` names the folder in which
the other gateways are installed, `HEADRACE_BENCH_TARGETS` which of its targets to measure, `HEADRACE_BENCH_COMPILED` a
`headrace` command of an environment in which the compiled wheel is installed. Everything is started, pinned to a core
of its own, and measured in turns, by the harness; here it is asked, and what it found is put together.

headrace is measured twice. `headrace` has nothing but defaults before an engine said to run 20,000 requests at a time.
`headrace, no window` leaves the un-started window out, as for a provider: every request is sent at once, as the others
do, whatever was seen of the engine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

HARNESS, PEERS, TARGETS = "HEADRACE_BENCH_HARNESS", "HEADRACE_BENCH_PEERS", "HEADRACE_BENCH_TARGETS"
COMPILED = "HEADRACE_BENCH_COMPILED"
OURS, OPEN = "headrace", ", no window"
SCENARIOS = ("rest1k", "rest32k", "rest1", "stream20c100", "stream20")
STREAMS = (1_000, 9_900)
"""Open slow streams whose memory is measured: two descriptors each, and many machines give a process 20,000."""

_CONFIG = """
server: {{log_level: warning}}
instances:
  - {{id: mock, address: "{upstream}", models: [mock], max_concurrent: 20000, window_tokens: {window}}}
dead_letters: {{path: "{work}/letters.db"}}
"""
_Value = Callable[[Mapping[str, Any]], float | None]
# The load repeats one body; without this word most requests would be answered by one call to the engine.
_APART = "cache-control: no-store"


@dataclass
class Figures:
    """What was found of one gateway: the median of the rounds of each value, by name; None: not measured."""

    name: str
    values: dict[str, float | None] = field(default_factory=dict)


def given(env: Mapping[str, str] = os.environ) -> Path | None:
    """The harness's folder, if one is named. Raises FileNotFoundError when it holds none."""
    named = env.get(HARNESS)
    if not named:
        return None
    folder = Path(named)
    if not (folder / "bench.py").exists():
        raise FileNotFoundError(f"{HARNESS}={named}: no bench.py in there")
    return folder


def compare(folder: Path, work: Path, rounds: int, *, memory: bool = True) -> list[Figures]:
    """Measure headrace and the targets asked for; `work` is a folder for what is built and written meanwhile.

    Memory hardly differs from one time to the next: it is measured once. With the window no thousand slow streams
    would be open at a time, so without.
    """
    for name in ("mock", "load"):
        subprocess.run(["cc", "-O2", "-o", str(work / name), str(folder / f"{name}.c")], check=True)
    theirs, ours = _theirs(folder), _ours(work)
    rows = _ask(folder, work, [*theirs, *ours], rounds, "--scenarios", ",".join(SCENARIOS))
    if memory:
        open_ones = [target for target in ours if target["name"].endswith(OPEN)]
        rows += _ask(folder, work, [*theirs, *open_ones], 1, "--startmem", "--streams", ",".join(map(str, STREAMS)))
    return figures(rows)


def figures(rows: Sequence[Mapping[str, Any]]) -> list[Figures]:
    """The harness's lines, put together by gateway."""
    found: list[Figures] = []
    for name in dict.fromkeys(row["target"] for row in rows):
        own = [row for row in rows if row["target"] == name]
        found.append(Figures(name, {value: _median(own, scenario, of) for value, (scenario, of) in _VALUES.items()}))
    return found


def _theirs(folder: Path) -> list[dict[str, Any]]:
    """Those asked for; `name=title` shows one under another name."""
    wanted = [name.partition("=") for name in os.environ.get(TARGETS, "nginx").split(",") if name]
    known = {target["name"]: target for target in json.loads((folder / "targets.json").read_text())}
    return [{**known[name], "name": title or name} for name, _, title in wanted]


def _ours(work: Path) -> list[dict[str, Any]]:
    forms = {"": str(Path(sys.executable).parent / "headrace")}
    if compiled := os.environ.get(COMPILED):
        forms[" (compiled)"] = compiled
    targets: list[dict[str, Any]] = []
    for number, (gates, window) in enumerate((("", "auto"), (OPEN, "null"))):
        config = work / f"headrace-{number}.yaml"
        config.write_text(_CONFIG.format(upstream="http://127.0.0.1:9000", work=work, window=window))
        for form, command in forms.items():
            started = f"{command} serve --config {config} --port {{port}}"
            env = {"XDG_STATE_HOME": str(work / f"state-{len(targets)}")}
            targets.append({"name": f"{OURS}{form}{gates}", "cmd": started, "headers": [_APART], "env": env})
    return targets


def _ask(
    folder: Path, work: Path, targets: Sequence[Mapping[str, Any]], rounds: int, *what: str
) -> list[dict[str, Any]]:
    asked = work / "targets.json"
    asked.write_text(json.dumps(targets))
    out = work / f"results-{what[0].lstrip('-')}.jsonl"
    out.unlink(missing_ok=True)
    command = [sys.executable, str(folder / "bench.py"), "--bin", str(work), "--work", str(work), "--out", str(out)]
    command += ["--targets", str(asked), "--rounds", str(rounds), "--lock", str(work / "lock"), *what]
    command += ["--peers", os.environ.get(PEERS, str(work)), "--sched", "nice" if os.geteuid() == 0 else "none"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return [json.loads(line) for line in out.read_text().splitlines()]


def _median(rows: Iterable[Mapping[str, Any]], scenario: str, of: _Value) -> float | None:
    values: list[float] = []
    for row in rows:
        if row["scenario"] == scenario:
            try:
                value = of(row)
            except (KeyError, TypeError, ZeroDivisionError):  # this round brought no such figure
                continue
            if value is not None:
                values.append(value)
    return statistics.median(values) if values else None


def _kib(streams: int, row: Mapping[str, Any]) -> float | None:
    """KiB of each open stream; None where most of those that are connected were not served."""
    served = row[f"events{streams}"] > row[f"open{streams}"] / 4
    return float((row[f"rss{streams}"] - row["idle_rss_mib"]) * 1024 / row[f"open{streams}"]) if served else None


_VALUES: dict[str, tuple[str, _Value]] = {
    "rps_1k": ("rest1k", lambda row: row["rps"]),
    "cpu_us_1k": ("rest1k", lambda row: row["cpu"] / row["rps"] * 1e6),
    "rps_32k": ("rest32k", lambda row: row["rps"]),
    "cpu_us_32k": ("rest32k", lambda row: row["cpu"] / row["rps"] * 1e6),
    "p50_us": ("rest1", lambda row: row["lat"]["p50"]),
    "event_us": ("stream20c100", lambda row: row["cpu"] / row["events_per_s"] * 1e6),
    "event_p99_ms": ("stream20c100", lambda row: row["owd"]["p99"] / 1e3),
    "busy_events": ("stream20", lambda row: row["events_per_s"]),
    "busy_core": ("stream20", lambda row: row["cpu"]),
    "busy_p99_ms": ("stream20", lambda row: row["owd"]["p99"] / 1e3),
    "start_s": ("startmem", lambda row: row["start_s"]),
    "idle_mib": ("startmem", lambda row: row["idle_rss_mib"]),
    **{f"kib_{count}": ("startmem", partial(_kib, count)) for count in STREAMS},
    "lost": ("startmem", lambda row: float(row[f"errors{STREAMS[-1]}"] + STREAMS[-1] - row[f"open{STREAMS[-1]}"])),
}
