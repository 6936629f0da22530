"""What a harness found becomes tables that say no more than was measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import page, peers
from benchmarks.harness import OPEN, OURS, STREAMS, figures
from benchmarks.report import Report

Row = Mapping[str, object]
MOST = STREAMS[-1]


def burst(target: str, rps: float, **more: object) -> Row:
    """One burst of 1 KB requests at a gateway that is kept busy."""
    return {"scenario": "rest1k", "target": target, "rps": rps, "cpu": 1.0, **more}


def memory(target: str, served: float) -> Row:
    """A gateway with many open streams, 10 KiB each, which delivers so many events a second."""
    return {
        "scenario": "startmem",
        "target": target,
        "start_s": 0.5,
        "idle_rss_mib": 50.0,
        f"rss{MOST}": 50.0 + MOST * 10 / 1024,
        f"open{MOST}": MOST,
        f"events{MOST}": served,
        f"errors{MOST}": 3,
    }


def test_a_value_is_the_median_of_the_rounds() -> None:
    """One disturbed round in three does not count."""
    (found,) = figures([burst("nginx", rps) for rps in (100.0, 10.0, 120.0)])
    assert found.values["rps_1k"] == 100.0
    assert found.values["cpu_us_1k"] == pytest.approx(1e4)


def test_what_was_not_measured_stays_empty() -> None:
    """A burst that failed brings no figure, and a table leaves out a gateway of which it has none."""
    found = figures([{"scenario": "rest1k", "target": "nginx", "error": "hung"}, burst(OURS, 50.0)])
    assert found[0].values["rps_1k"] is None
    assert [row[0] for row in peers.table("requests", found).rows] == [OURS]


def test_streams_that_are_open_and_not_served_are_no_measure_of_memory() -> None:
    """A gateway that only accepts connections looks small; it gets no figure."""
    idle, serving = figures([memory("idle", served=0.0), memory("serving", served=MOST / 2)])
    assert idle.values[f"kib_{MOST}"] is None
    assert serving.values[f"kib_{MOST}"] == pytest.approx(10.0)


def test_aims_compare_each_form_with_the_gateway_that_is_named() -> None:
    """A ratio is to the gateway of the aim, whatever its version; without that gateway there is none."""
    rows = [burst("nginx 1.22", 200.0), burst(OURS, 50.0), burst(f"{OURS}{OPEN}", 100.0), memory(f"{OURS}{OPEN}", MOST)]
    report = peers.aims(figures(rows))
    reached = {str(row[0]): tuple(row[2:]) for row in report.rows}
    assert tuple(report.columns[2:]) == (OURS, f"{OURS}{OPEN}")
    assert reached["1 KB, 64 connections: req/s, to nginx's"] == ("0.25", "0.50")
    assert reached["the same, to vllm-router's"] == ("", "")
    assert reached[f"{MOST:,} open streams: lost"] == ("", "3")


def test_the_page_keeps_what_is_written_by_hand(tmp_path: Path) -> None:
    """Only what is between the marks is replaced; a page without marks is refused."""
    text = tmp_path / "performance.md"
    text.write_text("before\n<!-- measured -->\nold\n<!-- /measured -->\nafter\n")
    page.write([Report("Micro", ("what", "takes"), [("a check", "1 µs")])], text, tmp_path / "plot.png")
    written = text.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "old" not in written
    assert "| a check | 1 µs |" in written
    text.write_text("nothing to replace")
    with pytest.raises(ValueError, match="no place"):
        page.write([], text, tmp_path / "plot.png")


def test_the_picture_is_drawn_of_what_was_compared(tmp_path: Path) -> None:
    """With others beside it the page gets its picture, also where values are missing."""
    pytest.importorskip("matplotlib")
    text, picture = tmp_path / "performance.md", tmp_path / "plot.png"
    text.write_text("<!-- measured -->\n<!-- /measured -->\n")
    found = figures([burst("nginx", 200.0), burst(OURS, 50.0)])
    page.write([peers.table(name, found) for name in peers.TABLES], text, picture)
    assert picture.stat().st_size > 0
