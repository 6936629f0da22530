"""Limits of time that many are under: who is due, when, and that it costs one timer."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from headrace.server.limits import TimeLimit
from headrace.testing import on_virtual_time
from tests.runtime.virtual import later


class Over:
    """Writes down whose time was over, and when."""

    def __init__(self) -> None:
        self.began = asyncio.get_running_loop().time()
        self.seen: list[tuple[str, float]] = []

    def __call__(self, subject: str) -> None:
        self.seen.append((subject, asyncio.get_running_loop().time() - self.began))
        if subject == "broken":
            raise RuntimeError("a bug")


def limit(over: Over, seconds: float = 10.0) -> TimeLimit[str]:
    """A limit in the running loop."""
    return TimeLimit(asyncio.get_running_loop(), seconds, over)


@on_virtual_time
async def test_everybody_has_the_same_time_from_his_own_beginning() -> None:
    """Nobody is told before his time is over, and nobody twice."""
    over = Over()
    kept = limit(over)
    kept.begin("a")
    await later(4.0)
    kept.begin("b")
    await later(5.9)
    assert over.seen == []
    await later(30.0)
    assert over.seen == [("a", 10.0), ("b", 14.0)]


@on_virtual_time
async def test_who_keeps_the_limit_hears_nothing_and_who_begins_anew_has_all_the_time_again() -> None:
    """Also when he was the first in line, for whom the timer was set."""
    over = Over()
    kept = limit(over)
    for name in ("a", "b", "c"):
        kept.begin(name)
    await later(6.0)
    kept.end("a")
    kept.begin("b")
    kept.end("nobody")
    await later(30.0)
    assert over.seen == [("c", 10.0), ("b", 16.0)]
    kept.begin("a")
    await later(11.0)
    assert over.seen[2:] == [("a", 46.0)]


@on_virtual_time
async def test_a_mistake_with_one_keeps_nobody_else_waiting() -> None:
    """It is told, and the others have their time."""
    over = Over()
    kept = limit(over)
    with capture_logs() as lines:
        kept.begin("broken")
        kept.begin("a")
        await later(3.0)
        kept.begin("b")
        await later(20.0)
    assert over.seen == [("broken", 10.0), ("a", 10.0), ("b", 13.0)]
    assert [line["event"] for line in lines] == ["a limit of time could not be enforced"]
