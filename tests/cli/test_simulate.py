"""`headrace simulate`: tables for people, JSON for scripts, one sentence for mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli import main


def call(*words: str) -> int:
    """Run the command; its exit code."""
    with pytest.raises(SystemExit) as caught:
        main(["simulate", *words])
    return int(caught.value.code or 0)


def test_json_has_the_promised_shape(capsys: pytest.CaptureFixture[str]) -> None:
    """One object for each scenario and policy: metrics, and targets with value, limit and whether it is met."""
    assert call("S1", "--policy", "fair,pass_through", "--seeds", "2", "--duration", "15", "--json") == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["policy"] for document in documents] == ["fair", "pass_through"]
    for document in documents:
        assert set(document) == {"scenario", "policy", "seeds", "metrics", "targets"}
        assert (document["scenario"], document["seeds"]) == ("S1", 2)
        assert set(document["targets"]["ttft_p99"]) == {"value", "limit", "ok"}
        assert document["metrics"]["asked"] == 1501
    assert documents[0]["targets"]["ttft_p99"]["ok"] is True
    assert documents[1]["targets"]["ttft_p99"]["ok"] is False


def test_tables_are_printed_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Both parts of S2 are shown, one after the other."""
    assert call("s2", "--duration", "5") == 0
    text = capsys.readouterr().out
    assert "S2  four below, four above their share" in text
    assert "S2-96" in text


def test_one_part_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """By its own name, in any case."""
    assert call("s9-32", "--duration", "5", "--json") == 0
    assert json.loads(capsys.readouterr().out)["scenario"] == "S9-32"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["S99"], "'S99' is no scenario; there are S1, S2"),
        ([], "Say what to simulate"),
        (["S1", "--policy", "lottery"], "'lottery' is no policy; there are fair"),
        (["gone.yaml"], "gone.yaml: No such file"),
        (["--journal", "gone.jsonl"], "gone.jsonl: No such file"),
        (["S1", "--plot", "gone/p.png"], "cannot write gone/p.png (there is no directory gone)"),
        (["S1", "--html", "gone/r.html"], "cannot write gone/r.html"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, no traceback, and what there is instead."""
    assert call(*words) == 2
    assert message in capsys.readouterr().err


def test_policies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """`--policy list` names each on a line."""
    assert call("S1", "--policy", "list") == 0
    assert {"fair", "fifo", "poll_gate"} <= set(capsys.readouterr().out.split())


def test_a_file_with_machines_only_wants_a_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without clients there is nothing to simulate; with a journal there is."""
    fleet, journal = tmp_path / "fleet.yaml", tmp_path / "day.jsonl"
    fleet.write_text("machines: [{name: m}]")
    journal.write_text('{"at": 0, "user": "ann", "prompt_tokens": 50, "output_tokens": 5}\n')
    assert call(str(fleet)) == 2
    assert "no clients" in capsys.readouterr().err
    assert call(str(fleet), "--journal", str(journal), "--json") == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["answered"] == 1


def test_a_picture_and_a_page_are_written(tmp_path: Path) -> None:
    """One picture for each part, named after it."""
    plot, html = tmp_path / "p.png", tmp_path / "r.html"
    assert call("S2", "--duration", "5", "--plot", str(plot), "--html", str(html)) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p-S2-96.png", "p-S2.png", "r.html"]
    assert html.read_text().startswith("<!doctype html>")
