"""What has just happened, told to whoever listens: bounded per listener, and never in the way of who tells."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")

HELD = 256
"""Most items that wait for one listener; of more the oldest go, and the listener is told how many."""
MOST_LISTENERS = 64


class TooManyListeners(Exception):
    """`MOST_LISTENERS` listen already."""


@dataclass(frozen=True, slots=True)
class Missed:
    """So many items were lost before the next one, because the listener was slow."""

    count: int


class Feed(Generic[T]):
    """Items as they come, to each of its listeners. Synchronous but for waiting; for one thread."""

    def __init__(self, *, held: int = HELD, most: int = MOST_LISTENERS) -> None:
        self._held = held
        self._most = most
        self._listeners: set[Listener[T]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._listeners)

    @property
    def full(self) -> bool:
        """One more listener would be too many."""
        return len(self._listeners) >= self._most

    def tell(self, item: T) -> None:
        """Give an item to all who listen. Never waits."""
        for listener in self._listeners:
            listener.take(item)

    def listen(self) -> Listener[T]:
        """A new listener; leave its context to be forgotten. Raises TooManyListeners."""
        if self.full:
            raise TooManyListeners
        listener = Listener[T](self._listeners, self._held)
        if self._closed:
            listener.end()
        else:
            self._listeners.add(listener)
        return listener

    def close(self) -> None:
        """Nothing more will come: all who listen are told, when they have taken what is there."""
        self._closed = True
        for listener in tuple(self._listeners):
            listener.end()


class Listener(Generic[T]):
    """One who listens to a feed; a context manager."""

    __slots__ = ("_ended", "_held", "_items", "_missed", "_others", "_waiter")

    def __init__(self, others: set[Listener[T]], held: int) -> None:
        self._others = others
        self._held = held
        self._items: deque[T] = deque()
        self._missed = 0
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._others.discard(self)

    def take(self, item: T) -> None:
        """An item has come."""
        if len(self._items) >= self._held:
            self._items.popleft()
            self._missed += 1
        self._items.append(item)
        self._wake()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._others.discard(self)
        self._wake()

    async def next(self) -> T | Missed | None:
        """The next item, as soon as there is one; `Missed` before it where some were lost; None: there will be none."""
        while not self._items:
            if self._ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._missed:
            missed, self._missed = self._missed, 0
            return Missed(missed)
        return self._items.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
