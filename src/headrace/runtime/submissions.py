"""What a program holds on to: a request it submitted without waiting, and the requests that were not answered."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.runtime.prompts import PromptAnswer
from headrace.runtime.stores import StoredLetter
from headrace.runtime.stores.memory import MemoryDeadLetters


class Pending(Protocol):
    """An answer that is on its way."""

    @property
    def done(self) -> bool:
        """Whether it has come to an end, good or bad."""
        ...

    async def answer(self) -> PromptAnswer:
        """The answer, or the error in its place."""
        ...

    def cancel(self) -> None:
        """Nobody wants it any more."""
        ...


class Submission:
    """A request that was submitted without waiting. Await it for the answer, or for the error in its place."""

    __slots__ = ("_pending", "accepted")

    def __init__(self, pending: Pending, *, accepted: bool) -> None:
        self._pending = pending
        self.accepted = accepted
        """False: it was turned away and never will be answered."""

    @property
    def done(self) -> bool:
        """Whether awaiting it returns at once."""
        return self._pending.done

    def cancel(self) -> None:
        """Give the request up; harmless when it is done. Awaiting it then raises `asyncio.CancelledError`."""
        self._pending.cancel()

    def __await__(self) -> Generator[None, None, PromptAnswer]:
        return self._pending.answer().__await__()


class Served:
    """Pending in a task."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[PromptAnswer]) -> None:
        self._task = task

    @property
    def done(self) -> bool:
        """The task has ended."""
        return self._task.done()

    async def answer(self) -> PromptAnswer:
        """What the task returns; one who stops waiting does not stop the task."""
        return await asyncio.shield(self._task)

    def cancel(self) -> None:
        """Cancel the task."""
        self._task.cancel()


class Shed:
    """Turned away."""

    __slots__ = ("_error",)

    def __init__(self, error: HeadraceError) -> None:
        self._error = error

    done = True

    async def answer(self) -> PromptAnswer:
        """Raises what the caller is told."""
        raise self._error

    def cancel(self) -> None:
        """There is nothing to cancel."""


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
