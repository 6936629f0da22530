"""One dead letter sent again: through the gateway's own queue, at class batch, on the account of its first caller.

The answer is asked for whole and belongs to whoever ordered the replay. A letter that fails once more is no new letter:
what the scheduler would bury goes to `Resender`, which watches the gateway's steps, and from there to the letter it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec.structs import replace

from headrace.errors import Fault, HeadraceError, cancelled, upstream_error
from headrace.model import AnswerForm, Bury, DeadLetter, Decision, Ending, Event, Flow, Request, ServiceClass
from headrace.runtime.answer_head import AnswerHead
from headrace.runtime.relay import Reader
from headrace.runtime.stores import StoredLetter, Tried
from headrace.wire.frames import Frame
from headrace.wire.openai import OpenAICall, assemble, parse
from headrace.wire.openai_again import again

LONGEST_ANSWER = 8 * 1024 * 1024
"""Bytes of one answer; a longer one counts as a failure that no further try would mend."""

ENDPOINTS = ("chat", "completions", "embeddings")


class Unsendable(Exception):
    """A letter that cannot be sent again; the text says why, for operators."""


class Reply(Protocol):
    """A request that was handed to the gateway."""

    def cancel(self) -> None:
        """Give it up. Harmless after its end."""
        ...


class Sender(Protocol):
    """The gateway, as far as letters are sent through it."""

    def open(self, request: Request, reader: Reader) -> Reply:
        """Take a request."""
        ...


@dataclass(frozen=True, slots=True)
class Resent:
    """How one letter fared this time."""

    answer: bytes | None = None
    """The whole answer as JSON; None: there is none."""
    head: AnswerHead | None = None
    """Who answered."""
    fault: Fault | None = None
    tried: Tried = Tried((), "")
    stopping: bool = False
    """The gateway is being stopped: it says nothing about the letter."""

    @property
    def mendable(self) -> bool:
        """Whether another try makes sense."""
        fault = self.fault
        return fault is not None and fault.retryable is not False and (fault.status == 429 or fault.status >= 500)


class Resender:
    """Sends letters; an observer of the gateway's steps.

    Args:
        gateway: takes them.
        wall: wall clock in seconds.
    """

    def __init__(self, gateway: Sender, *, wall: Callable[[], float] = time.time) -> None:
        self._gateway = gateway
        self._wall = wall
        self._under_way: dict[int, DeadLetter | None] = {}
        """By letter; what the scheduler said of its end, once it did."""

    def __call__(self, event: Event, decisions: Sequence[Decision], now: float) -> None:  # noqa: ARG002 - an observer
        """Note what would be buried of the letters under way."""
        if not self._under_way:
            return
        for decision in decisions:
            if isinstance(decision, Bury):
                number = decision.letter.request.letter
                if number is not None and number in self._under_way:
                    self._under_way[number] = decision.letter

    async def send(self, letter: StoredLetter, *, model: str | None = None, instance: str | None = None) -> Resent:
        """Send `letter`, which the caller has claimed, and wait for its end. Cancelling this gives the request up.

        Raises Unsendable.
        """
        call, request = prepared(letter, model=model, instance=instance)
        reader, since = _Collecting(call), self._wall() - (letter.died_at - letter.waited)
        self._under_way[letter.id] = None
        reply: Reply | None = None
        try:
            reply = self._gateway.open(request, reader)
            ending, fault = await reader.over
        finally:
            died = self._under_way.pop(letter.id)
            if reply is not None:
                reply.cancel()
        if fault is None:
            return Resent(answer=reader.answer(), head=reader.head)
        attempts = died.attempts if died is not None else ()
        begun = died.arrived if died is not None else 0.0
        moved = tuple(
            replace(attempt, started=attempt.started - begun + since, ended=attempt.ended - begun + since)
            for attempt in attempts
        )
        detail = (died.detail if died is not None else "") or fault.message
        stopping = ending in (Ending.DRAINING, Ending.SHUTTING_DOWN)
        return Resent(head=reader.head, fault=fault, tried=Tried(moved, detail), stopping=stopping)


def body_again(letter: StoredLetter, model: str | None) -> bytes:
    """The body that a letter is sent again with, to another model if one is named. Raises Unsendable."""
    if letter.body is None:
        raise Unsendable("the request was not kept")
    if letter.redacted:
        raise Unsendable("the request was kept without its texts")
    if letter.endpoint not in ENDPOINTS:
        raise Unsendable(f"requests of the kind {letter.endpoint} cannot be sent again")
    try:
        return again(letter.body, model)
    except ValueError as error:
        raise Unsendable(f"the request cannot be read: {error}") from error


def prepared(
    letter: StoredLetter, *, model: str | None = None, instance: str | None = None
) -> tuple[OpenAICall, Request]:
    """The request that a letter is sent again as. Raises Unsendable."""
    try:
        call = parse(letter.endpoint, body_again(letter, model))
    except HeadraceError as error:
        raise Unsendable(error.fault.message) from error
    request = Request(
        id=f"replay-{letter.id}",
        flow=Flow(ServiceClass.BATCH, letter.tenant, letter.user, letter.session),
        model=call.model,
        endpoint=call.endpoint,
        prompt_tokens=call.prompt_tokens,
        output_cap=call.output_cap,
        form=AnswerForm.WHOLE,
        only=instance,
        letter=letter.id,
        payload=call,
    )
    return call, request


class _Collecting:
    """A reader that gathers an answer; `over` is its end, with a fault where there is no answer."""

    wants_usage = True

    def __init__(self, call: OpenAICall) -> None:
        self.over: asyncio.Future[tuple[Ending, Fault | None]] = asyncio.get_running_loop().create_future()
        self.head: AnswerHead | None = None
        self._call = call
        self._parts: list[bytes] = []
        self._size = 0
        self._answer: bytes | None = None

    def begin(self, head: AnswerHead) -> None:
        self.head = head

    def write(self, data: bytes) -> bool:
        self._parts.append(data)
        self._size += len(data)
        if self._size > LONGEST_ANSWER:
            message = f"The answer is longer than {LONGEST_ANSWER} bytes, the most that a replay keeps."
            self._end(Ending.INFERENCE_FAILURE, replace(upstream_error(message), retryable=False))
        return True

    def end(self, ending: Ending, fault: Fault | None) -> None:
        if fault is None and ending is not Ending.ANSWERED:
            fault = cancelled()
        elif fault is None:
            fault = self._assembled()
        self._end(ending, fault)

    def answer(self) -> bytes | None:
        return self._answer

    def _assembled(self) -> Fault | None:
        """Puts the answer together; the fault where that cannot be done."""
        try:
            if self.head is None:
                return upstream_error()
            if self.head.form is AnswerForm.WHOLE:
                self._answer = b"".join(self._parts)
            else:
                self._answer = assemble(self._call, [Frame(part) for part in self._parts])
            msgspec.json.decode(self._answer)
        except (ValueError, TypeError, AttributeError, msgspec.MsgspecError):
            self._answer = None
            # Frames pass through unread; that an engine wrote nonsense into one shows only here.
            return upstream_error()
        return None

    def _end(self, ending: Ending, fault: Fault | None) -> None:
        self._parts.clear()
        if not self.over.done():
            self.over.set_result((ending, fault))
