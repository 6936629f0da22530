"""Callers of the library as readers of a relay: one that wants the whole text, one that wants it as it comes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import Final

from headrace.errors import Fault, error_for
from headrace.model import CacheResult, Ending
from headrace.runtime.answer_head import AnswerHead
from headrace.runtime.prompts import PromptAnswer
from headrace.runtime.reply import Reply
from headrace.runtime.stages import STREAM_FRAMES
from headrace.runtime.submissions import Submission

_CANCELLED: Final = Ending.CANCELLED
_HIT: Final = CacheResult.HIT


class WholeText(Submission):
    """Gathers an answer. `reply` is set by whoever opens the request."""

    __slots__ = ("_answer", "_head", "_parts", "_waiters", "ending", "fault", "reply")

    wants_usage = False

    def __init__(self) -> None:
        self.accepted = True
        self.reply: Reply | None = None
        self.ending: Ending | None = None
        self.fault: Fault | None = None
        self._head: AnswerHead | None = None
        self._answer: PromptAnswer | None = None
        self._parts: list[bytes] | None = None
        self._waiters: list[asyncio.Future[None]] | None = None

    def begin(self, head: AnswerHead) -> None:
        """The answer begins."""
        self._head = head

    def write(self, data: bytes) -> bool:
        """A piece of it."""
        if self._parts is None:
            self._parts = [data]
        else:
            self._parts.append(data)
        return True

    def end(self, ending: Ending, fault: Fault | None) -> None:
        """It is over."""
        self.ending, self.fault = ending, fault
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    @property
    def done(self) -> bool:
        """It has come to an end."""
        return self.ending is not None

    def cancel(self) -> None:
        """Nobody wants it any more; harmless after the end."""
        if self.ending is None:
            self.end(Ending.CANCELLED, None)
            if self.reply is not None:
                self.reply.cancel()

    def __await__(self) -> Generator[object, None, PromptAnswer]:
        """The answer, as soon as it is complete. Raises what `answer` raises."""
        if self.ending is None:
            yield from self.waiter(asyncio.get_running_loop())
        return self.answer()

    def waiter(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A future that is done when it is over."""
        waiter: asyncio.Future[None] = loop.create_future()
        if self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters.append(waiter)
        return waiter

    def answer(self) -> PromptAnswer:
        """The answer, once it is over.

        Raises:
            HeadraceError: there is none; the class says whose fault it is.
            asyncio.CancelledError: the request was cancelled.
        """
        if self.fault is not None:
            raise error_for(self.fault)
        if self.ending is _CANCELLED:
            raise asyncio.CancelledError
        if self._answer is None:
            self._answer = self._made()
        return self._answer

    def _made(self) -> PromptAnswer:
        # Reply and reader know each other; whoever has the answer needs neither, and a cycle would outlive the request.
        head, reply, self.reply = self._head, self.reply, None
        assert reply is not None
        text = b"".join(self._parts or ()).decode()
        if head is None:
            return PromptAnswer(text, reply.id)
        hit = head.cache is _HIT
        usage = None if hit or reply.flight is None else reply.flight.usage
        return PromptAnswer(text, reply.id, usage, head.cache, head.instance, head.attempts, head.waited)


class StreamedText:
    """Holds what its caller has not taken yet: `STREAM_FRAMES` pieces, then the worker has to wait."""

    __slots__ = ("_behind", "_pieces", "_waiter", "ending", "fault", "reply")

    wants_usage = False

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self.ending: Ending | None = None
        self.fault: Fault | None = None
        self._pieces: deque[bytes] = deque()
        self._behind = False
        self._waiter: asyncio.Future[None] | None = None

    def begin(self, head: AnswerHead) -> None:
        """The answer begins."""

    def write(self, data: bytes) -> bool:
        """A piece of it."""
        self._pieces.append(data)
        self._wake()
        self._behind = len(self._pieces) >= STREAM_FRAMES
        return not self._behind

    def end(self, ending: Ending, fault: Fault | None) -> None:
        """It is over."""
        self.ending, self.fault = ending, fault
        self._wake()

    def leave(self) -> None:
        """The caller takes no more; harmless after the end."""
        if self.ending is None and self.reply is not None:
            self.ending = Ending.CANCELLED
            self.reply.cancel()

    async def next(self) -> str | None:
        """The next piece; None at the end of a complete answer.

        Raises:
            HeadraceError: the answer ends here and is not complete, or never began.
        """
        while not self._pieces and self.ending is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._pieces:
            piece = self._pieces.popleft()
            if self._behind and len(self._pieces) <= STREAM_FRAMES // 2 and self.reply is not None:
                self._behind = False
                self.reply.resume()
            return piece.decode()
        if self.fault is not None:
            raise error_for(self.fault)
        return None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
