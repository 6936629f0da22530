"""headrace beside other gateways; see `benchmarks.harness` for what has to be given."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness import HARNESS, OURS, STREAMS, Figures, compare, given
from benchmarks.report import Report

TITLE = "Beside others"
TABLES: Mapping[str, Mapping[str, tuple[str, int]]] = {
    "requests": {
        "rps_1k": ("1 KB, 64 connections: req/s", 0),
        "cpu_us_1k": ("CPU µs each", 0),
        "rps_32k": ("32 KB, 64 connections: req/s", 0),
        "cpu_us_32k": ("CPU µs each", 0),
        "p50_us": ("1 KB, 1 connection: p50 µs", 0),
    },
    "streams": {
        "event_us": ("5,000 events/s: CPU µs each", 1),
        "event_p99_ms": ("p99 delay ms", 2),
        "busy_events": ("25,000 events/s: delivered", 0),
        "busy_core": ("core", 2),
        "busy_p99_ms": ("p99 delay ms", 1),
    },
    "memory and start": {
        **{f"kib_{count}": (f"KiB a stream, {count:,} open", 1) for count in STREAMS},
        "idle_mib": ("idle MiB", 0),
        "start_s": ("seconds to the first answer", 2),
    },
}
AIMS: Sequence[tuple[str, str, str, str]] = (
    ("1 KB, 64 connections: req/s, to nginx's", "rps_1k", "nginx", "≥ 0.4"),
    ("the same, to vllm-router's", "rps_1k", "vllm-router", "≥ 2"),
    ("32 KB, 64 connections: req/s, to nginx's", "rps_32k", "nginx", "≥ 0.5"),
    ("the same, to vllm-router's", "rps_32k", "vllm-router", "≥ 1.8"),
    ("1 connection: p50, to vllm-router's", "p50_us", "vllm-router", "< 1"),
    ("5,000 events/s: CPU per event, to vllm-router's", "event_us", "vllm-router", "≤ 1"),
    ("the same: p99 delay, ms", "event_p99_ms", "", "< 1"),
    ("25,000 events/s: delivered", "busy_events", "", "all"),
    ("the same: p99 delay, ms", "busy_p99_ms", "", "≤ 5"),
    *((f"{count:,} open streams: KiB each", f"kib_{count}", "", "≤ 16") for count in STREAMS),
    (f"{STREAMS[-1]:,} open streams: lost", "lost", "", "0"),
    ("idle: MiB", "idle_mib", "", "≤ 80"),
    ("start to first answer: s", "start_s", "", "≤ 1"),
)
"""What is compared, the value, the gateway whose value it is divided by, the aim."""


def run(quick: bool = False) -> list[Report]:
    """Measure; without a harness only say what is missing."""
    folder = given()
    if folder is None:
        missing = f"not measured: {HARNESS} names no harness (benchmarks/harness.py says what it is)"
        return [Report(TITLE, (), notes=[missing])]
    with tempfile.TemporaryDirectory() as work:
        found = compare(folder, Path(work), 1 if quick else 3)
    return [aims(found), *(table(name, found) for name in TABLES)]


def aims(found: Sequence[Figures]) -> Report:
    """What was aimed at, and where each form of headrace stands."""
    ours = [each for each in found if each.name.startswith(OURS)]
    report = Report("Aims", ("what", "aim", *(each.name for each in ours)))
    for what, name, to, aim in AIMS:
        theirs = next((each.values[name] for each in found if to and each.name.startswith(to)), None)
        report.rows.append((what, aim, *(_reached(each.values[name], to, theirs) for each in ours)))
    return report


def table(name: str, found: Sequence[Figures]) -> Report:
    """Some of the values, a row for each gateway; `numbers` holds them under the gateway's name and their own."""
    columns = TABLES[name]
    report = Report(f"{TITLE}: {name}", ("gateway", *(title for title, _ in columns.values())))
    for each in found:
        if all(each.values[value] is None for value in columns):
            continue
        report.rows.append((each.name, *(_shown(each.values[value], digits) for value, (_, digits) in columns.items())))
        report.numbers |= {f"{each.name}_{value}": each.values[value] or 0.0 for value in columns}
    return report


def _reached(value: float | None, to: str, theirs: float | None) -> str:
    if value is None or not to:
        return _shown(value, 0 if value is None or value >= 100 or value.is_integer() else 2)
    return _shown(value / theirs if theirs else None, 2)


def _shown(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
