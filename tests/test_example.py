"""The example of the library, run as a reader would."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from headrace.testing import run_virtual

EXAMPLE = Path(__file__).parent.parent / "examples" / "llm_pipeline.py"


def test_the_example_does_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Three model calls for twelve requests, an outage with five failures and three refusals, eight dead letters."""
    spec = importlib.util.spec_from_file_location("llm_pipeline", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    run_virtual(module.main())
    out = capsys.readouterr().out
    assert out.count("model call ") == 3
    assert out.count("shared  ") == 9
    assert out.count("503 upstream_error") == 5
    assert out.count("503 circuit_open") == 3
    assert "20 requests, 3 model calls, 9 shared, 12 answered, 5 failed, 3 refused; breaker open" in out
    assert out.count("inference_failure") + out.count("circuit_open  ") == 8
    assert out.endswith("Streamed: You said: roses are red \n")


def test_the_example_is_short() -> None:
    """About 150 lines that can be read."""
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 160
