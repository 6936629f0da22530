"""What all tests can ask for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.written import Written

# How long an example takes says more of what else the machine does than of the code. And a check looks at the same
# examples everywhere: what passes here passes there. `make search` looks for others.
settings.register_profile(
    "any machine", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("any machine"), derandomize=False, max_examples=1000)
settings.load_profile("any machine")


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes a configuration file and gives its path."""

    def write(text: str) -> Path:
        path = tmp_path / "headrace.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(autouse=True)
def _logs_as_nobody_set_them() -> Iterator[None]:
    """What a command sets for its own process is not the next test's."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        logging.getLogger("headrace").setLevel(logging.NOTSET)
        root = logging.getLogger()
        root.setLevel(logging.WARNING)
        for handler in root.handlers[:]:
            if isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter):
                root.removeHandler(handler)
