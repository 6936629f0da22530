"""Listeners hear what happens, in order; a slow one loses the oldest and is told, and slows nobody down."""

from __future__ import annotations

import asyncio

import pytest

from headrace.runtime.stores.feed import Feed, Missed, TooManyListeners


async def test_each_listener_hears_everything_in_order() -> None:
    """From the moment it listens."""
    feed = Feed[int]()
    feed.tell(0)
    with feed.listen() as one, feed.listen() as two:
        feed.tell(1)
        feed.tell(2)
        assert [await one.next(), await one.next(), await two.next(), await two.next()] == [1, 2, 1, 2]
    assert len(feed) == 0


async def test_who_waits_is_woken() -> None:
    """An item that comes later is heard at once."""
    feed = Feed[str]()
    with feed.listen() as listener:
        waiting = asyncio.create_task(listener.next())
        await asyncio.wait([waiting], timeout=0)
        feed.tell("late")
        assert await waiting == "late"


async def test_a_slow_listener_loses_the_oldest_and_is_told() -> None:
    """How many were lost is said once, before the first that is left."""
    feed = Feed[int](held=3)
    with feed.listen() as slow, feed.listen() as quick:
        for number in range(5):
            feed.tell(number)
            if number < 3:
                assert await quick.next() == number
        assert [await slow.next() for _ in range(4)] == [Missed(2), 2, 3, 4]
        assert await quick.next() == 3
        feed.tell(5)
        assert await slow.next() == 5


async def test_listeners_are_bounded() -> None:
    """One who leaves makes room."""
    feed = Feed[int](most=1)
    with feed.listen(), pytest.raises(TooManyListeners):
        feed.listen()
    with feed.listen():
        pass


async def test_the_end_is_told_after_what_is_left() -> None:
    """Who listens or comes later learns that nothing more will come."""
    feed = Feed[int]()
    with feed.listen() as listener:
        feed.tell(1)
        feed.close()
        feed.tell(2)
        assert [await listener.next(), await listener.next()] == [1, None]
    with feed.listen() as late:
        assert await late.next() is None
    assert len(feed) == 0


async def test_a_listener_that_gives_up_waiting_can_listen_on() -> None:
    """A cancelled wait loses nothing."""
    feed = Feed[int]()
    with feed.listen() as listener:
        waiting = asyncio.create_task(listener.next())
        await asyncio.wait([waiting], timeout=0)
        waiting.cancel()
        await asyncio.wait([waiting])
        feed.tell(1)
        assert await listener.next() == 1
