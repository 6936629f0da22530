"""One kind of log line, whoever says it, and nothing in it that nobody should read."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from headrace.cli.logs import configure


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Logging is the process's: put it back."""
    root, own = logging.getLogger(), logging.getLogger("headrace")
    handlers, levels = list(root.handlers), (root.level, own.level)
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])
    structlog.reset_defaults()


def lines(captured: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    """What was logged as JSON."""
    return [json.loads(line) for line in captured.readouterr().err.splitlines()]


def fail(prompt: str) -> None:
    """Raises with a secret in a variable, not in the message."""
    assert prompt
    raise RuntimeError("a mistake")


def test_both_ways_of_logging_give_the_same_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """What is said through `logging` has the form of the rest: machines read one kind of line."""
    configure("info", "json")

    structlog.get_logger("headrace.server").info("request", status=200)
    logging.getLogger("headrace.runtime").warning("retrieval failed with %s", "OSError")

    first, second = lines(capsys)
    assert (first["event"], first["level"], first["status"]) == ("request", "info", 200)
    assert (second["event"], second["level"]) == ("retrieval failed with OSError", "warning")
    assert first.keys() - {"status"} == second.keys()


def test_libraries_are_heard_from_warnings_on(capsys: pytest.CaptureFixture[str]) -> None:
    """At level info a library's own news is no line of ours; its warnings are, and ours follow the level."""
    configure("info", "json")
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    logging.getLogger("headrace.runtime").info("news")
    configure("error", "json")
    logging.getLogger("headrace.runtime").warning("not at this level")

    assert [line["event"] for line in lines(capsys)] == ["Task exception was never retrieved", "news"]


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_stack_trace_shows_no_variables(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake of ours is logged with its place; the prompt that a variable held at that moment is not."""
    configure("info", form)
    try:
        fail("MARKER-" + str(4711))
    except RuntimeError:
        structlog.get_logger("headrace.server").exception("request failed")
        logging.getLogger("headrace.runtime").exception("attempt not started")

    text = capsys.readouterr().err
    assert text.count("RuntimeError: a mistake") == 2
    assert "MARKER-4711" not in text
