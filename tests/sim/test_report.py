"""What is shown: tables with every policy, a picture, a page that needs nothing else."""

from __future__ import annotations

import struct
import sys
from io import StringIO

import pytest
from rich.console import Console

from headrace.errors import ConfigError
from headrace.sim.page import page
from headrace.sim.plots import draw
from headrace.sim.report import shown, tables
from headrace.sim.scenarios import SCENARIOS
from headrace.sim.suite import Result, Suite


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """A short S2 under two policies."""
    scenario = SCENARIOS["S2"][0].shorter(12)
    return [Suite().result(scenario, policy, [1, 2]) for policy in ("fair", "pass_through")]


def test_tables_show_each_group_policy_and_target(results: list[Result]) -> None:
    """Nothing is left out, and a missed target is a word, not only a colour."""
    out = StringIO()
    Console(file=out, width=160).print(tables(results))
    text = out.getvalue()
    for word in ("fair", "pass_through", "above", "below", "service_difference", ">= 0.97 x pass_through", "met"):
        assert word in text
    assert "2 seeds" in text


def test_numbers_are_shown_with_their_unit() -> None:
    """Times in seconds, paces in milliseconds, counts whole, what is unknown as a dash."""
    assert shown("ttft_p99", 0.123) == "0.12 s"
    assert shown("tpot_p50", 0.0423) == "42 ms"
    assert shown("jain", 0.98765) == "0.988"
    assert shown("asked", 1500.0) == "1,500"
    assert shown("limit", float("nan")) == shown("limit", None) == "-"


def test_a_picture_is_drawn(results: list[Result]) -> None:
    """A PNG of a size that fits a page."""
    picture = draw(results)
    assert picture.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", picture[16:24])
    assert 800 <= width <= 2400
    assert 800 <= height <= 2400


def test_the_page_stands_alone(results: list[Result]) -> None:
    """Tables and pictures are inside; nothing is fetched, and names cannot break out of the text."""
    text = page([results])
    assert "data:image/png;base64," in text
    assert "http" not in text
    assert "<td>below</td>" in text
    assert "missed" in text or "met" in text


def test_without_matplotlib_one_sentence_says_what_to_do(
    results: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plots are an extra; its absence is no traceback."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"python\S* -m pip install matplotlib"):
        draw(results)
