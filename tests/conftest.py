"""What all tests can ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.written import Written


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes a configuration file and gives its path."""

    def write(text: str) -> Path:
        path = tmp_path / "headrace.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
