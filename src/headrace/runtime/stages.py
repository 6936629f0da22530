"""The bounded stages around inference: input -> retrieve -> assemble -> (queue, inference) -> post -> stream.

Each stage is a room for so many requests. One that wants into a full room is shed at once: it becomes a dead letter
with the reason `backpressure:<stage>` and its caller is told to come back. A stage whose hook was not given holds
nothing and costs nothing.

Whatever happens in a room (an error, a time limit, a caller who leaves), the place in it is given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from headrace.errors import Fault, HeadraceError, deadline_exceeded, hook_failed, queue_full
from headrace.model import Ending
from headrace.runtime.prompts import PromptAnswer, PromptRequest

RETRIEVE_SECONDS = 2.0
"""A retrieval that takes longer lets the prompt go on without context."""
HOOK_SECONDS = 30.0
"""Longest time of the other hooks."""
STREAM_FRAMES = 256
"""Pieces of one streamed answer that may wait for its reader, before the worker has to."""

Retrieve: TypeAlias = Callable[[PromptRequest], Awaitable[str | None]]
"""Finds context for a prompt; None: there is none."""
Assemble: TypeAlias = Callable[[PromptRequest, str | None], Awaitable[PromptRequest]]
"""Makes the prompt that the model gets of a request and its context."""
Post: TypeAlias = Callable[[PromptAnswer], Awaitable[PromptAnswer]]
"""Works on a finished answer before its caller gets it."""

_log = logging.getLogger(__name__)


class StageView(NamedTuple):
    """How full a stage is."""

    name: str
    depth: int
    capacity: int


class Unserved(Exception):
    """A request ends in a stage; the pipeline writes its dead letter and tells `fault`."""

    def __init__(self, ending: Ending, reason: str, detail: str, fault: Fault) -> None:
        super().__init__(reason)
        self.ending = ending
        self.reason = reason
        self.detail = detail
        self.fault = fault


class Place:
    """One request's place in a stage; given back by `leave`, which is harmless when repeated."""

    __slots__ = ("_stage",)

    def __init__(self, stage: Stage) -> None:
        self._stage: Stage | None = stage
        stage.depth += 1

    def leave(self) -> None:
        """Give it back."""
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.depth -= 1


class Stage:
    """A room for `capacity` requests."""

    __slots__ = ("capacity", "depth", "name")

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.capacity = capacity
        self.depth = 0

    @property
    def view(self) -> StageView:
        """How full it is."""
        return StageView(self.name, self.depth, self.capacity)

    def enter(self) -> Place:
        """Take a place.

        Raises:
            Unserved: there is none.
        """
        if self.depth >= self.capacity:
            fault = queue_full(1.0)
            raise Unserved(Ending.BACKPRESSURE, f"backpressure:{self.name}", fault.message, fault)
        return Place(self)

    @asynccontextmanager
    async def room(self, seconds: float, deadline: float | None) -> AsyncIterator[None]:
        """A place, for `seconds` at most and not past `deadline` (on the loop's clock).

        Raises:
            Unserved: there is no place, or the deadline has passed.
            TimeoutError: the time is over.
        """
        now = asyncio.get_running_loop().time()
        until = now + seconds if deadline is None else min(now + seconds, deadline)
        place, limit = self.enter(), asyncio.timeout_at(until)
        try:
            async with limit:
                yield
        except TimeoutError:
            if limit.expired() and until == deadline:
                raise _expired() from None
            raise
        finally:
            place.leave()


class Stages:
    """The rooms and the hooks in them.

    `deadline`, where a method takes one, is on the running loop's clock.
    """

    def __init__(self, retrieve: Retrieve | None, assemble: Assemble | None, post: Post | None) -> None:
        self.input = Stage("input", 512)
        self.stream = Stage("stream", 512)
        self._retrieve = Stage("retrieve", 512)
        self._assemble = Stage("assemble", 512)
        self._post = Stage("post", 1024)
        self._retrieve_hook = retrieve
        self._assemble_hook = assemble
        self._post_hook = post
        self.before = retrieve is not None or assemble is not None
        """Something is to be done before inference."""
        self.after = post is not None
        """Something is to be done after it."""
        self.any = self.before or self.after
        """There is a hook at all."""

    def views(self, inference: StageView) -> tuple[StageView, ...]:
        """All stages in the order of a request's way."""
        early = (self.input.view, self._retrieve.view, self._assemble.view)
        return (*early, inference, self._post.view, self.stream.view)

    async def prepare(self, prompt: PromptRequest, place: Place, deadline: float | None) -> PromptRequest:
        """Retrieve and assemble; `place`, which the prompt has in `input`, is given back.

        Raises:
            Unserved: a stage was full, the deadline passed, or the assemble hook failed.
            HeadraceError: the assemble hook raised it.
        """
        place.leave()
        context = await self._context(prompt, deadline) if self._retrieve_hook is not None else None
        hook = self._assemble_hook
        if hook is None:
            return prompt if context is None else replace(prompt, input=f"{context}\n\n{prompt.input}")
        try:
            async with self._assemble.room(HOOK_SECONDS, deadline):
                return await hook(prompt, context)
        except (HeadraceError, Unserved):
            raise
        except Exception as error:
            raise _hook_failed(self._assemble.name, error) from error

    async def finish(self, answer: PromptAnswer, deadline: float | None) -> PromptAnswer:
        """Post-process.

        Raises:
            Unserved: the stage was full, the deadline passed, or the hook failed.
            HeadraceError: the hook raised it.
        """
        hook = self._post_hook
        if hook is None:
            return answer
        try:
            async with self._post.room(HOOK_SECONDS, deadline):
                return await hook(answer)
        except (HeadraceError, Unserved):
            raise
        except Exception as error:
            raise _hook_failed(self._post.name, error) from error

    async def _context(self, prompt: PromptRequest, deadline: float | None) -> str | None:
        """What retrieval finds; None where it finds nothing, fails or takes too long."""
        hook = self._retrieve_hook
        assert hook is not None
        try:
            async with self._retrieve.room(RETRIEVE_SECONDS, deadline):
                return await hook(prompt)
        except Unserved:
            raise
        except Exception as error:  # noqa: BLE001  # no context is better than no answer
            _log.warning("retrieval failed with %s; the prompt goes on without context", type(error).__qualname__)
            return None


def _expired() -> Unserved:
    fault = deadline_exceeded()
    return Unserved(Ending.DEADLINE_EXPIRED, Ending.DEADLINE_EXPIRED.value, fault.message, fault)


def _hook_failed(stage: str, error: Exception) -> Unserved:
    """The hook's own words may quote a prompt: only its name and the kind of error are told."""
    detail = f"{stage}: {type(error).__qualname__}"
    return Unserved(Ending.INFERENCE_FAILURE, Ending.INFERENCE_FAILURE.value, detail, hook_failed(stage))
