"""What a program holds on to: a request it submitted without waiting, and the requests that were not answered."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator

from headrace.errors import HeadraceError
from headrace.runtime.prompts import PromptAnswer
from headrace.runtime.stores import StoredLetter
from headrace.runtime.stores.memory import MemoryDeadLetters


class Submission(ABC):
    """A request that was submitted without waiting. Await it for the answer, or for the error in its place."""

    __slots__ = ("accepted",)

    def __init__(self, *, accepted: bool) -> None:
        self.accepted = accepted
        """False: it was turned away and never will be answered."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether awaiting it returns at once."""

    @abstractmethod
    def cancel(self) -> None:
        """Give the request up; harmless when it is done. Awaiting it then raises `asyncio.CancelledError`."""

    @abstractmethod
    def __await__(self) -> Generator[object, None, PromptAnswer]:
        """The answer, or the error in its place."""


class Served(Submission):
    """Taken through its stages by a task."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[PromptAnswer]) -> None:
        super().__init__(accepted=True)
        self._task = task

    @property
    def done(self) -> bool:
        """The task has ended."""
        return self._task.done()

    def cancel(self) -> None:
        """Cancel the task."""
        self._task.cancel()

    def __await__(self) -> Generator[object, None, PromptAnswer]:
        """What the task returns; one who stops waiting does not stop the task."""
        return (yield from asyncio.shield(self._task))


class Shed(Submission):
    """Turned away."""

    __slots__ = ("_error",)

    def __init__(self, error: HeadraceError) -> None:
        super().__init__(accepted=False)
        self._error = error

    @property
    def done(self) -> bool:
        """It never was under way."""
        return True

    def cancel(self) -> None:
        """There is nothing to cancel."""

    def __await__(self) -> Generator[object, None, PromptAnswer]:
        """Raises what the caller is told."""
        yield from ()
        raise self._error


class DeadLetterQueue:
    """The requests that were not answered, each with its reason; the oldest first. Bounded: the oldest go first.

    A letter's `body` is the request as JSON: `PromptRequest.read(letter.body)` makes it anew.
    """

    __slots__ = ("_letters",)

    def __init__(self, letters: MemoryDeadLetters) -> None:
        self._letters = letters

    def __len__(self) -> int:
        return self._letters.count

    def __iter__(self) -> Iterator[StoredLetter]:
        return iter(self._letters.ring.oldest(len(self)))

    @property
    def evicted(self) -> int:
        """Letters lost to the bound since the start."""
        return self._letters.evicted

    def drain(self) -> tuple[StoredLetter, ...]:
        """Gives out and removes all letters, oldest first."""
        return self._letters.ring.drain()
