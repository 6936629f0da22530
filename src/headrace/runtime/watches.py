"""One task per instance, for as long as the instance is there and unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable

from headrace.model import Instance


class Watches:
    """Runs `work` for each instance it is told of. An instance that changes gets a new task."""

    def __init__(self, work: Callable[[Instance], Coroutine[None, None, None]]) -> None:
        self._work = work
        self._tasks: dict[str, tuple[Instance, asyncio.Task[None]]] = {}

    def keep(self, instances: Iterable[Instance]) -> tuple[str, ...]:
        """Watch exactly these from now on. Returns the ids of those that are gone or were replaced."""
        wanted = {instance.id: instance for instance in instances}
        gone = tuple(name for name, (instance, _) in self._tasks.items() if wanted.get(name) != instance)
        for name in gone:
            self._tasks.pop(name)[1].cancel()
        for name, instance in wanted.items():
            if name not in self._tasks:
                self._tasks[name] = (instance, asyncio.create_task(self._work(instance)))
        return gone

    async def close(self) -> None:
        """Stop all, and wait until they have stopped."""
        tasks = [task for _, task in self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
