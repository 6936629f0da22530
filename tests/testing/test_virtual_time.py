"""The clock that jumps."""

import asyncio
import threading

import pytest

from headrace.testing import (
    Changes,
    Deadlock,
    Endless,
    GuardExpired,
    RealIO,
    ScriptedEngine,
    guarded,
    on_virtual_time,
    run_virtual,
    virtual_time,
)


def test_an_hour_passes_at_once_and_exactly() -> None:
    """The clock stands at the very time a timer was set for, whatever rounding a sum would bring."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        seen: list[float] = []
        for when in (0.1, 0.30000000000000004, 3600.0, 700_000.7):
            reached = asyncio.Event()
            loop.call_at(when, reached.set)
            await reached.wait()
            seen.append(loop.time())
        return seen

    assert run_virtual(main()) == [0.1, 0.30000000000000004, 3600.0, 700_000.7]


def test_timers_fire_in_the_order_of_their_times() -> None:
    """Order follows the times asked for, and cancelled timers are never jumped to."""

    async def main() -> tuple[list[str], float]:
        loop = asyncio.get_running_loop()
        order: list[str] = []
        loop.call_later(5.0, order.append, "late").cancel()
        for delay, name in ((0.3, "c"), (0.1, "a"), (0.2, "b")):
            loop.call_later(delay, order.append, name)
        last = asyncio.Event()
        loop.call_later(0.4, last.set)
        await last.wait()
        return order, loop.time()

    assert run_virtual(main()) == (["a", "b", "c"], 0.4)


def test_a_deadlock_fails_and_names_who_waits() -> None:
    """Where real time would hang for ever, virtual time raises and names the task."""

    async def stuck() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(stuck(), name="the-stuck-one")

    with pytest.raises(Deadlock, match="the-stuck-one"):
        run_virtual(main())


def test_waiting_in_vain_beside_something_that_ticks_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time would go on for ever: after a bounded amount of work the test fails and names the tasks."""
    monkeypatch.setattr(virtual_time, "LONGEST_WORK", 0.05)

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def tick() -> None:
            loop.call_later(0.25, tick)

        tick()
        await asyncio.create_task(asyncio.Event().wait(), name="the-stuck-one")

    with pytest.raises(Endless, match="the-stuck-one"):
        run_virtual(main())


@pytest.mark.parametrize("start", [31_536_000.7, 1e12])
def test_timers_of_years_fire(start: float) -> None:
    """Where times are too large for a nanosecond to show, a timer that is due is still seen to be due."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        for when in (start, start + 0.25):
            reached = asyncio.Event()
            loop.call_at(when, reached.set)
            await reached.wait()
        return loop.time()

    assert run_virtual(main()) == start + 0.25


def test_a_timeout_ends_a_wait_in_virtual_time() -> None:
    """`guarded` turns a wait that never ends into a sentence about what did not happen."""

    async def main() -> None:
        await guarded(asyncio.Event().wait(), 86_400.0, "the moon turns green")

    with pytest.raises(GuardExpired, match="the moon turns green"):
        run_virtual(main())


def test_a_timeout_of_the_thing_awaited_is_its_own() -> None:
    """Only the guard's own expiry becomes `GuardExpired`; a TimeoutError from within passes through."""

    async def late() -> None:
        raise TimeoutError("from within")

    with pytest.raises(TimeoutError, match="from within"):
        run_virtual(guarded(late(), 1.0, "anything"))


def test_many_cancelled_timers_are_forgotten() -> None:
    """A hundred thousand timers set and cancelled leave no more than a sweep's worth behind."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        for _ in range(100_000):
            loop.call_later(60.0, print).cancel()
        return len(loop._timers)  # type: ignore[attr-defined]

    assert run_virtual(main()) <= 1024


def test_sockets_are_refused_unless_asked_for() -> None:
    """Virtual time never silently outruns the network."""

    async def main() -> None:
        async with ScriptedEngine():
            await asyncio.Event().wait()

    with pytest.raises(RealIO):
        run_virtual(main())


def test_loopback_peers_in_one_loop_work_with_settle() -> None:
    """With `settle`, bytes on loopback arrive before time jumps past a five-minute timeout."""

    async def main() -> tuple[bytes, float]:
        async with ScriptedEngine() as engine:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(engine.url.rpartition(":")[2]))
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
            async with asyncio.timeout(300.0):
                answer = await reader.read()
            writer.close()
            return answer, asyncio.get_running_loop().time()

    answer, now = run_virtual(main(), settle=0.02)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert now == 0.0


def test_time_stands_still_while_an_executor_works() -> None:
    """Work in a thread is waited for; no timer overtakes it."""
    leave = threading.Event()

    async def main() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(10.0, print)
        loop.call_soon(leave.set)
        await loop.run_in_executor(None, leave.wait, 5.0)
        return loop.time()

    assert run_virtual(main()) == 0.0


@on_virtual_time
async def test_the_decorator_makes_an_async_test_plain(tmp_path: object) -> None:
    """A decorated test runs on virtual time and still gets its fixtures."""
    loop = asyncio.get_running_loop()
    reached = asyncio.Event()
    loop.call_later(1e6, reached.set)
    await reached.wait()

    assert loop.time() == 1e6
    assert tmp_path is not None


@on_virtual_time
async def test_changes_wake_only_when_the_condition_holds() -> None:
    """A waiter looks again after each notice and returns once its condition is true."""
    changes, count = Changes(), 0
    waiter = asyncio.create_task(changes.until(lambda: count == 2, 5.0, "count to two"))
    for _ in range(2):
        await asyncio.sleep(0)
        assert not waiter.done()
        count += 1
        changes.notify()
    await waiter

    assert asyncio.get_running_loop().time() == 0.0
