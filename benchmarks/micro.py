"""The small parts: what a check, a hit, a submission cost. `test_micro.py` holds the measurements.

Each figure is the best of several rounds, in the process's own CPU time: nothing there waits, and other processes do
not count.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import test_micro
from benchmarks.report import Report

MEASUREMENTS = Path(__file__).with_name("test_micro.py")


def run(quick: bool = False) -> list[Report]:
    """Measure everything; `quick` makes no difference, for it takes seconds."""
    del quick
    report = Report("Micro", ("what", "takes", "aim"))
    for found in measured():
        name, about = found["name"].removeprefix("test_"), found["extra_info"]
        seconds = found["stats"]["min"] / about.get("calls", 1)
        what = getattr(test_micro, found["name"]).__doc__
        report.rows.append((what, shown(seconds), f"< {shown(about['aim'])}" if about.get("aim") else ""))
        report.numbers[name] = seconds
    return [report]


def measured() -> list[dict[str, Any]]:
    """What pytest-benchmark writes of each measurement. Raises CalledProcessError when one fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "micro.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(MEASUREMENTS)]
        command += ["--benchmark-timer=time.process_time", f"--benchmark-json={out}"]
        subprocess.run(command, check=True, capture_output=True)
        found: list[dict[str, Any]] = json.loads(out.read_text())["benchmarks"]
    return found


def shown(seconds: float) -> str:
    """In milliseconds or microseconds."""
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.2f} µs"
