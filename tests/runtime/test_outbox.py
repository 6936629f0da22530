"""What is sent in one turn of the loop leaves together."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headrace.runtime.outbox import TOGETHER, Outbox


class Note:
    """Writes its name down when it leaves."""

    def __init__(self, name: int, left: list[int], error: Exception | None = None) -> None:
        self.name = name
        self.left = left
        self.error = error

    def flush(self) -> None:
        if self.error is not None:
            raise self.error
        self.left.append(self.name)


async def test_the_first_of_a_turn_leaves_at_once_and_the_others_at_its_end() -> None:
    """Who is alone waits for nothing; who is not leaves in the order of coming before the turn is over."""
    outbox, loop, left = Outbox(), asyncio.get_running_loop(), list[int]()
    for turn in range(2):
        for name in range(3):
            outbox.add(Note(name, left), loop)
        assert left == [0, 1, 2] * turn + [0]
        await asyncio.sleep(0)
        assert left == [0, 1, 2] * (turn + 1)


async def test_no_more_wait_than_may() -> None:
    """Behind the first, as many as may wait leave in the middle of the turn, and the next ones wait again."""
    outbox, loop, left = Outbox(), asyncio.get_running_loop(), list[int]()
    for name in range(TOGETHER):
        outbox.add(Note(name, left), loop)
    assert left == [0]
    outbox.add(Note(TOGETHER, left), loop)
    assert left == list(range(TOGETHER + 1))
    outbox.add(Note(TOGETHER + 1, left), loop)
    assert len(left) == TOGETHER + 1
    await asyncio.sleep(0)
    assert left == list(range(TOGETHER + 2))


async def test_a_sender_that_fails_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A mistake with one is logged, and the others leave."""
    outbox, loop, left = Outbox(), asyncio.get_running_loop(), list[int]()
    with caplog.at_level(logging.ERROR):
        for name in range(4):
            outbox.add(Note(name, left, RuntimeError("closed") if name == 2 else None), loop)
        await asyncio.sleep(0)
    assert left == [0, 1, 3]
    assert "could not be" in caplog.text
