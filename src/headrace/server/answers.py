"""The two ends an answer can have: a stream of server-sent events, or one JSON body.

The relay carries either form, whichever the engine gave; a caller who asked for the other one, because he joined
somebody else's call or because the engine answered whole to a stream, gets it translated when it is complete.

Until `begin` nothing has been sent, so every failure before it is a proper HTTP error. After it a failure is one
error event and a proper end of the body without `[DONE]`: clients see that the answer is incomplete, and connections
survive. A stream that waits long is begun by `queued`, without an answer yet: what its headers could not say then
follows as comments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from headrace import errors
from headrace.errors import Fault
from headrace.model import AnswerForm, Ending, Request
from headrace.runtime.answer_head import AnswerHead
from headrace.server.exchange import Exchange, header_value
from headrace.server.ports import Reply
from headrace.server.refusals import JSON, refuse
from headrace.wire.frames import Frame
from headrace.wire.openai import OpenAICall, assemble, error_frame, split
from headrace.wire.queue_notes import WAITING, late_headers, queued_note

_STREAM_HEADERS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)

_STREAM: Final = AnswerForm.STREAM
_WHOLE: Final = AnswerForm.WHOLE
_ANSWERED: Final = Ending.ANSWERED


class AnswerWriter:
    """One request's answer: a relay's reader that writes to an exchange in the form its caller asked for.

    `closed` is called exactly once, when the caller has been told the end or has left.
    """

    __slots__ = (
        "_call",
        "_closed",
        "_collected",
        "_exchange",
        "_limit",
        "_opened",
        "_passes",
        "_size",
        "arrived",
        "attempts",
        "code",
        "ending",
        "head",
        "over",
        "reply",
        "request",
        "status",
        "taken",
        "wants_usage",
    )

    def __init__(
        self,
        exchange: Exchange,
        call: OpenAICall,
        request: Request,
        limit: int,
        arrived: float,
        closed: Callable[[AnswerWriter], None],
    ) -> None:
        """`limit`: most bytes of an answer that has to be collected; `arrived`: when its request came."""
        self.request = request
        self.arrived = arrived
        self.wants_usage = call.include_usage or not call.stream
        self.reply: Reply | None = None
        """The request as the gateway has it, from its opening to the end."""
        self.taken = 0.0
        """Seconds from the complete body until the gateway had it."""
        self.head: AnswerHead | None = None
        self.over = False
        """The caller has been told the end, or has left: `ending`, `status`, `code` and `attempts` say how."""
        self.ending = _ANSWERED
        self.status = 200
        self.code: str | None = None
        self.attempts = 0
        self._exchange = exchange
        self._call = call
        self._limit = limit
        self._closed = closed
        self._collected: list[bytes] = []
        self._size = 0
        self._passes = False
        """Frames go straight through."""
        self._opened = False
        """The answer's head has gone out as that of a stream."""

    def begin(self, head: AnswerHead) -> None:
        """See `runtime.relay.Reader`."""
        self.head = head
        self._passes = self._call.stream and head.form is _STREAM
        if self._passes:
            self._open()

    def queued(self, position: int, seconds: float) -> None:
        """Tell the caller of a stream where it stands; the answer's status is 200 from now on. See `waiting.Guest`."""
        if not self._opened:
            self._opened = True
            place = ("x-headrace-queue-position", str(position))
            self._exchange.start(200, [*_STREAM_HEADERS, *self._known_headers(), place])
        self._exchange.write(queued_note(position, seconds))

    def still_waits(self) -> None:
        """Give a sign of life where one was given before. See `waiting.Guest`."""
        if self._opened:
            self._exchange.write(WAITING)

    @property
    def waits(self) -> bool:
        """Whether nothing of the answer has come yet."""
        return self.head is None and not self.over

    def write(self, data: bytes) -> bool:
        """See `runtime.relay.Reader`."""
        if self.over:
            return True
        if self._passes:
            return self._exchange.write(data)
        self._collected.append(data)
        self._size += len(data)
        if self._size > self._limit:
            reply = self.reply
            self._fail(Ending.INFERENCE_FAILURE, errors.upstream_error("The answer is too large to be sent whole."))
            if reply is not None:
                reply.cancel()
        return True

    def end(self, ending: Ending, fault: Fault | None) -> None:
        """See `runtime.relay.Reader`."""
        if self.over:
            return
        if fault is None and ending is not _ANSWERED:
            fault = errors.cancelled()
        if fault is None and self.head is None:
            fault = errors.upstream_error()
        if fault is not None:
            self._fail(ending, fault)
        elif self._passes:
            self._exchange.finish()
            self._close(ending, 200)
        else:
            self._deliver(ending)

    def leave(self) -> None:
        """The caller has gone: nothing is written any more, and nobody needs the rest."""
        if not self.over:
            reply = self.reply
            self._close(Ending.CANCELLED, 499)
            if reply is not None:
                reply.cancel()

    def _deliver(self, ending: Ending) -> None:
        """Hand over what was collected, in the form that was asked for."""
        try:
            body = self._translated()
        except (ValueError, TypeError, AttributeError):
            # Frames pass through the gateway unread; that an engine wrote nonsense into one shows only here.
            self._fail(Ending.INFERENCE_FAILURE, errors.upstream_error())
            return
        if self._call.stream:
            self._open()
            self._exchange.finish(body)
        else:
            self._exchange.answer(200, (JSON, *self._all_headers()), body)
        self._close(ending, 200)

    def _translated(self) -> bytes:
        assert self.head is not None
        if self._call.stream:
            frames = split(self._call, b"".join(self._collected))
            return b"".join(frame.data for frame in frames if self.wants_usage or not frame.usage_only)
        if self.head.form is _WHOLE:
            return b"".join(self._collected)
        return assemble(self._call, [Frame(data) for data in self._collected])

    def _open(self) -> None:
        """Begin the stream; where that was done while it waited, tell what was not known then."""
        if self._opened:
            self._exchange.write(late_headers((name, header_value(value)) for name, value in self._learned_headers()))
            return
        self._opened = True
        self._exchange.start(200, (*_STREAM_HEADERS, *self._all_headers()))

    def _fail(self, ending: Ending, fault: Fault) -> None:
        self.code = fault.code
        if self._opened:
            self._exchange.finish(error_frame(fault))
            self._close(ending, 200, fault.attempts)
        else:
            headers = [*self._all_headers(), ("x-headrace-drop-reason", ending.value)]
            if self.head is None and fault.attempts:
                headers.append(("x-headrace-attempts", str(fault.attempts)))
            refuse(self._exchange, fault, headers)
            self._close(ending, fault.status, fault.attempts)

    def _close(self, ending: Ending, status: int, attempts: int = 0) -> None:
        self.over = True
        self.ending, self.status = ending, status
        self.attempts = attempts or (0 if self.head is None else self.head.attempts)
        self._collected.clear()
        self._closed(self)
        self.reply = None  # it leads back here, and what leads back waits for the garbage collector

    def _all_headers(self) -> Sequence[tuple[str, str]]:
        return (*self._known_headers(), *self._learned_headers())

    def _known_headers(self) -> Sequence[tuple[str, str]]:
        return (("x-request-id", self.request.id), ("x-headrace-class", self.request.flow.service_class))

    def _learned_headers(self) -> Sequence[tuple[str, str]]:
        head = self.head
        if head is None:
            return ()
        return (
            ("x-headrace-instance", head.instance),
            ("x-headrace-model", head.model),
            ("x-headrace-attempts", str(head.attempts)),
            ("x-headrace-queue-ms", str(round(head.waited * 1000))),
            ("x-headrace-cache", head.cache),
        )
