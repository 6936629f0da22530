"""An event loop whose clock jumps: an hour of waiting passes in no time, and always in the same order.

When no callback is ready the loop does not wait for its next timer; it sets its clock to exactly that timer's time and
goes on. Nothing ready and no timer left is a deadlock: in real time the test would hang, here it fails and names what
every task waits for. So does a test that waits in vain while something else ticks on: after `LONGEST_WORK` seconds of
its own work, which do not count what else the machine has to do.

For tests inside one process. Work given to `run_in_executor` is waited for in real time. Sockets are refused unless
`settle` is given: then time jumps only after all of them were silent for `settle` real seconds, which suits peers on
loopback that live in the same loop. Other threads that call `call_soon_threadsafe` are not seen coming.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import math
import selectors
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

T = TypeVar("T")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")

_EXECUTOR_GUARD = 120.0
"""Longest real wait in seconds for work given to an executor."""
LONGEST_WORK = 100.0
"""Most seconds of work and of waiting for silence in one virtual time; its end gets a tenth more to tidy up."""
_SWEEP_AT = 1024
"""The timers are swept of cancelled ones first at this number, later whenever they have doubled."""


class VirtualTimeError(AssertionError):
    """The code under test cannot go on in virtual time."""


class Deadlock(VirtualTimeError):
    """Every task waits and no timer would ever wake one."""


class Endless(VirtualTimeError):
    """Something goes on and on, and what is waited for does not come: `LONGEST_WORK` is done."""


class RealIO(VirtualTimeError):
    """A socket is open and no `settle` was given: virtual time would outrun it."""


class _JumpingSelector(selectors.BaseSelector):
    """A selector that asks the loop for a jump where a real one would wait."""

    def __init__(self, quiet: Callable[[], float], jump: Callable[[], None]) -> None:
        self._real = selectors.DefaultSelector()
        self._quiet = quiet
        self._jump = jump

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = self._real.select(0)
        if events or timeout == 0:
            return events
        events = self._real.select(self._quiet())
        if not events:
            self._jump()
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The loop. `time()` starts at 0.0 seconds and moves only by jumps to the next timer.

    `settle`: real seconds of silence on all sockets before a jump; None refuses sockets with `RealIO`.
    """

    def __init__(self, *, settle: float | None = None) -> None:
        self._settle = settle
        self._virtual_now = 0.0
        self._timers: list[asyncio.TimerHandle] = []
        self._sweep_at = _SWEEP_AT
        self._in_executor = 0
        self._silences = 0
        self._until = time.thread_time() + LONGEST_WORK
        self._jumping = _JumpingSelector(self._quiet_time, self._advance)
        super().__init__(self._jumping)
        self._own_files = len(self._jumping.get_map())
        self._clock_resolution: float = time.get_clock_info("monotonic").resolution
        self._finest = self._clock_resolution

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As in any loop; the timer is remembered as a place to jump to."""
        handle = super().call_at(when, callback, *args, context=context)
        if len(self._timers) >= self._sweep_at:
            self._timers = [timer for timer in self._timers if not timer.cancelled()]
            heapq.heapify(self._timers)
            self._sweep_at = max(_SWEEP_AT, 2 * len(self._timers))
        heapq.heappush(self._timers, handle)
        return handle

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """As in any loop; time stands still until the work is done."""
        future = super().run_in_executor(executor, func, *args)
        self._in_executor += 1
        future.add_done_callback(self._left_executor)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109 - asyncio's
        """As in any loop, but the bound is that of all work in executors."""
        self._in_executor += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._in_executor -= 1

    def _left_executor(self, _: asyncio.Future[T]) -> None:
        self._in_executor -= 1

    def _quiet_time(self) -> float:
        """How long, in real seconds, nothing may happen before time jumps."""
        if self._in_executor:
            return _EXECUTOR_GUARD
        if len(self._jumping.get_map()) <= self._own_files:
            return 0.0
        if self._settle is None:
            raise RealIO("a socket is open on a virtual-time loop: use fakes in memory, or give `settle`")
        return self._settle

    def _advance(self) -> None:
        while self._timers and (self._timers[0].cancelled() or self._timers[0].when() <= self._virtual_now):
            heapq.heappop(self._timers)
        if self._in_executor:
            raise Deadlock(f"work in an executor did not end within {_EXECUTOR_GUARD} real seconds")
        if not self._timers:
            raise Deadlock(f"nothing is ready and no timer is set; the tasks wait at:{_where_tasks_wait(self)}")
        self._silences += 1
        spent = time.thread_time() + self._silences * (self._settle or 0.0)
        if spent > self._until:
            self._until = spent + LONGEST_WORK / 10
            raise Endless(
                f"not at its end after {LONGEST_WORK} seconds of work; the tasks wait at:{_where_tasks_wait(self)}"
            )
        self._virtual_now = self._timers[0].when()
        # As fine as times of this size can be told apart: with less the loop never sees that a timer is due.
        self._clock_resolution = max(self._finest, 2 * math.ulp(self._virtual_now))


def _where_tasks_wait(loop: asyncio.AbstractEventLoop) -> str:
    lines = [""]
    for task in sorted(asyncio.all_tasks(loop), key=asyncio.Task.get_name):
        frames = task.get_stack(limit=1)
        place = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else "an unknown place"
        lines.append(f"  {task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')}) at {place}")
    return "\n".join(lines)


def run_virtual(main: Coroutine[Any, Any, T], *, settle: float | None = None) -> T:
    """Run `main` to its end on a fresh virtual-time loop and return its result.

    Raises what `main` raises, `Deadlock` when nothing can ever wake it, `Endless` when nothing has for too long, and
    `RealIO` for a socket without `settle` (real seconds, see the module's head).
    """
    with asyncio.Runner(loop_factory=functools.partial(VirtualTimeLoop, settle=settle)) as runner:
        return runner.run(main)


def on_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Decorator: an async test becomes a plain one that runs on virtual time. Fixtures work as usual."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtual(test(*args, **kwargs))

    return run
