"""The waiting room: who is told where he stands, when, and that it costs one timer."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from headrace.server.waiting import AT_ONCE, GRAIN, WaitingRoom
from headrace.testing import on_virtual_time
from tests.runtime.virtual import later


class Listener:
    """A guest who writes down when he was told what."""

    def __init__(self) -> None:
        self.waits = True
        self.heard: list[tuple[float, object]] = []

    def queued(self, position: int, seconds: float) -> None:
        self.heard.append((asyncio.get_running_loop().time(), (position, seconds)))

    def still_waits(self) -> None:
        self.heard.append((asyncio.get_running_loop().time(), "waits"))

    @property
    def times(self) -> list[float]:
        return [when for when, _ in self.heard]


class Places(dict[str, tuple[int, float]]):
    """Where everybody stands; counts how often that was asked."""

    asked = 0

    def __call__(self) -> Places:
        self.asked += 1
        return self


@on_virtual_time
async def test_nobody_is_told_before_his_time() -> None:
    """First after the bound, then at each interval, with the place of that moment."""
    places = Places(r=(3, 4.2))
    room, guest, began = WaitingRoom(places, 5.0, 2.0), Listener(), asyncio.get_running_loop().time()
    room.enter("r", guest)
    await later(4.9)
    assert (guest.heard, places.asked) == ([], 0)
    await later(0.2)
    places["r"] = (1, 1.0)
    await later(4.0)
    assert guest.heard == [(began + 5.0, (3, 4.2)), (began + 7.0, (1, 1.0)), (began + 9.0, (1, 1.0))]
    room.leave("r")
    await later(100.0)
    assert len(guest.heard) == 3
    assert len(room) == 0


@on_virtual_time
async def test_each_has_his_own_time() -> None:
    """One timer serves all: those who come later are told later, whoever leaves in between."""
    room, began = WaitingRoom(Places(), 6.0, 20.0), asyncio.get_running_loop().time()
    guests = {f"r{number}": Listener() for number in range(5)}
    for request_id, guest in guests.items():
        room.enter(request_id, guest)
        await later(1.0)
    room.leave("r0")
    room.leave("r2")
    room.leave("nobody")
    await later(10.0)
    due = [guest.times for guest in guests.values()]
    assert due == [[], [began + 7.0], [], [began + 9.0], [began + 10.0]]


@on_virtual_time
async def test_who_is_not_in_the_queue_still_waits() -> None:
    """A request that was sent and has no word yet is given a sign of life instead of a place."""
    places = Places(r=(1, 1.0))
    room, guest = WaitingRoom(places, 5.0, 5.0), Listener()
    room.enter("r", guest)
    await later(6.0)
    places.clear()
    await later(5.0)
    assert [word for _, word in guest.heard] == [(1, 1.0), "waits"]


@on_virtual_time
async def test_who_does_not_wait_any_more_is_forgotten() -> None:
    """Once the answer flows nothing is said, and the room does not keep him."""
    room, guest = WaitingRoom(Places(r=(1, 1.0)), 5.0, 5.0), Listener()
    room.enter("r", guest)
    guest.waits = False
    await later(5.0)
    assert guest.heard == []
    assert len(room) == 0


@on_virtual_time
async def test_an_empty_room_has_no_timer() -> None:
    """Short requests, one after the other, set one timer in `after` seconds, and none is left when all have gone."""
    loop = asyncio.get_running_loop()
    room, timers, set_timer = WaitingRoom(Places(), 5.0, 5.0), 0, loop.call_later

    def counted(delay: float, *rest: object) -> asyncio.TimerHandle:
        nonlocal timers
        timers += 1
        return set_timer(delay, *rest)  # type: ignore[arg-type]

    loop.call_later = counted  # type: ignore[method-assign, assignment]
    for number in range(1000):
        room.enter(f"r{number}", Listener())
        room.leave(f"r{number}")
    assert (timers, len(room)) == (1, 0)
    await later(100.0)
    room.enter("late", Listener())
    assert timers == 3, "this test's own, and one more for the one who came after the room was empty"
    room.leave("late")


@on_virtual_time
async def test_a_crowd_is_told_in_portions() -> None:
    """However many are due, one look tells a bounded number and asks for the places once."""
    places, count = Places(), 3 * AT_ONCE
    places.update({f"r{number}": (number, 1.0) for number in range(count)})
    room, began = WaitingRoom(places, 5.0, 60.0), asyncio.get_running_loop().time()
    guests = [Listener() for _ in range(count)]
    for number, guest in enumerate(guests):
        room.enter(f"r{number}", guest)
    await later(5.0 + 2.5 * GRAIN)
    times = [round(guest.times[0] - began, 6) for guest in guests]
    assert times == [round(5.0 + number // AT_ONCE * GRAIN, 6) for number in range(count)]
    assert places.asked == 3


@on_virtual_time
async def test_a_guest_who_cannot_be_told_keeps_nobody_else_waiting() -> None:
    """A mistake of ours with one of them is logged; the others are told at their times, and so is he the next time."""
    room, other = WaitingRoom(Places(), 5.0, 2.0), Listener()

    class Broken(Listener):
        def still_waits(self) -> None:
            super().still_waits()
            raise RuntimeError("a mistake")

    broken = Broken()
    with capture_logs() as logs:
        room.enter("broken", broken)
        room.enter("other", other)
        await later(7.5)
    assert [guest.times for guest in (broken, other)] == [[5.0, 7.0]] * 2
    assert [entry["id"] for entry in logs] == ["broken", "broken"]


@on_virtual_time
async def test_zero_tells_nobody() -> None:
    """The notes can be switched off."""
    room, guest = WaitingRoom(Places(r=(1, 1.0)), 0.0, 1.0), Listener()
    room.enter("r", guest)
    await later(1000.0)
    assert guest.heard == []
    assert len(room) == 0
