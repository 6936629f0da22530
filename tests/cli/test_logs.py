"""One kind of log line, whoever says it, and nothing in it that nobody should read."""

from __future__ import annotations

import asyncio
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


def test_news_in_one_step_are_the_same_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """A line that takes the short way has what was bound to its logger, the worker, and a value JSON does not know."""
    configure("info", "json", 3)
    logger = structlog.get_logger("headrace.server").bind(model="m")

    logger.info("request", status=200, odd=1j)
    logger.warning("request", status=200, odd=1j)

    short, long = lines(capsys)
    assert short == {**long, "level": "info", "timestamp": short["timestamp"]}
    assert (short["model"], short["worker"], short["odd"]) == ("m", 3, "1j")


def test_news_of_one_turn_leave_in_order_and_before_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    """In a running loop news waits for the end of its turn, but never behind a warning that came later."""
    configure("info", "json")
    logger = structlog.get_logger("headrace.server")
    seen: list[int] = []

    async def talk() -> None:
        logger.info("one")
        logger.info("two")
        seen.append(len(capsys.readouterr().err))
        logger.warning("three")
        logger.info("four")
        seen.append(len(text := capsys.readouterr().err))
        assert [json.loads(line)["event"] for line in text.splitlines()] == ["one", "two", "three"]
        await asyncio.sleep(0)
        (line,) = lines(capsys)
        assert line["event"] == "four"

    asyncio.run(talk())
    assert seen[0] == 0


def test_news_of_the_last_turn_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    """What is said just before the loop ends is written all the same."""
    configure("info", "json")

    async def talk() -> None:
        structlog.get_logger("headrace.server").info("last")

    asyncio.run(talk())

    assert [line["event"] for line in lines(capsys)] == ["last"]


def test_below_its_level_nothing_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    """News is not told where warnings are asked for."""
    configure("warning", "json")
    structlog.get_logger("headrace.server").info("request")

    assert lines(capsys) == []
