"""headrace beside other gateways; see `benchmarks.harness` for what has to be given."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.harness import HARNESS, OURS, STREAMS, Figures, compare, given
from benchmarks.report import Report

COLUMNS: dict[str, tuple[str, int]] = {
    "rps_1k": ("1 KB, 64 conns: req/s", 0),
    "cpu_us_1k": ("CPU µs each", 0),
    "rps_32k": ("32 KB: req/s", 0),
    "p50_us": ("1 conn: p50 µs", 0),
    "event_us": ("5,000 events/s: CPU µs each", 1),
    "event_p99_ms": ("p99 ms", 2),
    "busy_events": ("25,000 events/s: sent", 0),
    "busy_core": ("core", 2),
    "busy_p99_ms": ("p99 ms", 1),
    **{f"kib_{count}": (f"KiB a stream, {count:,} open", 1) for count in STREAMS},
    "idle_mib": ("idle MiB", 0),
    "start_s": ("start s", 2),
}


def run(quick: bool = False) -> Report:
    """Measure; without a harness only say what is missing."""
    folder = given()
    report = Report("Beside others", ("gateway", *(title for title, _ in COLUMNS.values())))
    if folder is None:
        report.notes.append(f"not measured: {HARNESS} names no harness (benchmarks/harness.py says what it is)")
        return report
    with tempfile.TemporaryDirectory() as work:
        found = compare(folder, Path(work), 1 if quick else 3)
    tell(report, found)
    return report


def tell(report: Report, found: list[Figures]) -> None:
    """A row for each gateway, and how headrace compares with each."""
    for each in found:
        report.rows.append((each.name, *(_shown(each.values[name], digits) for name, (_, digits) in COLUMNS.items())))
        report.numbers |= {f"{each.name}_{name}": value for name, value in each.values.items() if value is not None}
    ours = next((each for each in found if each.name == OURS), None)
    for each in found:
        if ours is not None and each is not ours:
            report.notes.append(f"headrace to {each.name}: {ratios(ours, each)}")


def ratios(ours: Figures, theirs: Figures) -> str:
    """Requests per second as parts of theirs, and processor time per event as a part of theirs."""
    parts: list[str] = []
    for name, what in (("rps_1k", "1 KB"), ("rps_32k", "32 KB"), ("p50_us", "latency"), ("event_us", "CPU per event")):
        mine, other = ours.values[name], theirs.values[name]
        if mine and other:
            parts.append(f"{what} {mine / other:.2f}")
    return ", ".join(parts)


def _shown(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
