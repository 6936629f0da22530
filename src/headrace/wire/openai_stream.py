"""Reads one streamed answer in OpenAI's form and hands on what clients may see of it.

Most reads of a running stream hold nothing but whole chunks with text. Those go out as the very bytes object that
came in, found regular by a few searches and a scan that builds nothing. Everything else (the beginning, the end, usage,
errors, tool calls, other line ends, cut events) is taken apart event by event and sent out again as `data: ...` with
a blank line. A cut never shows: the output is the same for every way to cut the input.

Commit: chunks without content are held back until the first content or finish reason, so that an attempt which fails
before it can be made again elsewhere, unseen.

Finished is a stream that gave `[DONE]`, or a finish reason to each choice it began. A clean end of the body alone is a
broken stream.

Bounds: an event, and what is held back, are at most `sse.EVENT_LIMIT` bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from headrace import errors
from headrace.model import Cause, Outcome, Usage
from headrace.wire import openai_shapes as shapes
from headrace.wire import sse
from headrace.wire.engine_errors import EngineError, in_band, read_error
from headrace.wire.frames import Frame
from headrace.wire.openai_answer import split
from headrace.wire.openai_call import OpenAICall
from headrace.wire.openai_tools import ToolCallNumbers
from headrace.wire.openai_whole import read_whole

DONE = sse.event(b"[DONE]")

_MODEL = re.compile(rb'"model"\s*+:\s*+"(?:[^"\\]|\\.)*+"')
_NONE = frozenset[int]()
_FIRST = frozenset((0,))
_CHOICES_LIMIT = 128
"""Choices that are told apart; OpenAI's own bound for `n`."""


def regular(data: bytes, model: str | None) -> int:
    """How many chunks `data` holds if it is nothing but whole, plain ones with text; 0 if it has to be taken apart.

    `model` is what the engine called itself so far.
    """
    if not (data.startswith(b"data: {") and data.endswith(b"}\n\n")) or data.find(b"\r") >= 0:
        return 0
    if data.find(b"\n") == len(data) - 2:
        return 1 if shapes.is_plain(data[6:], model) else 0
    chunks = data[6:-2].split(b"\n\ndata: ")
    whole = data.count(b"\n") == 2 * len(chunks) and all(shapes.is_plain(chunk, model) for chunk in chunks)
    return len(chunks) if whole else 0


def _with(known: frozenset[int], number: int) -> frozenset[int]:
    """`known` with `number`, as long as there are not too many."""
    if number in known or len(known) >= _CHOICES_LIMIT:
        return known
    return known | {number} if known or number else _FIRST


class OpenAIDecoder:
    """One streamed answer of an OpenAI-shaped engine. Feed it what the network brings, then `finish` it once."""

    __slots__ = (
        "_begun",
        "_call",
        "_direct",
        "_finished",
        "_held",
        "_held_size",
        "_length_cut",
        "_model",
        "_numbers",
        "_reader",
        "_rename",
        "_talking",
        "_usage_alone",
        "_usage_told",
        "_verdict",
        "_whole",
        "ended",
        "started",
        "tokens",
        "usage",
    )

    def __init__(self, call: OpenAICall) -> None:
        self.started = False
        self.ended = False
        self.tokens = 0
        self.usage: Usage | None = None
        self._call = call
        self._reader: sse.SseReader | None = sse.SseReader()
        """Cuts what is taken apart; None while reads go straight through, so that a quiet stream holds little."""
        self._direct = False
        """Content has begun and the next byte begins an event: a regular read may go straight through."""
        self._held: list[bytes] | None = None
        self._held_size = 0
        self._talking = self._finished = _NONE
        """Choices that were seen to begin and to end; nearly always there is only choice 0."""
        self._length_cut = False
        self._verdict: Outcome | None = None
        self._model: str | None = None
        """What the engine called itself in the chunk read last."""
        self._rename: tuple[bytes, bytes] | None = None
        self._numbers: dict[int, ToolCallNumbers] | None = None
        self._usage_told = b""
        self._usage_alone = False
        """The chunk that told the usage, and whether that is all it told."""
        self._begun = False
        self._whole: bytearray | None = None
        """An engine that was asked for a stream may answer with one JSON body; it is kept here until it ends."""

    def feed(self, data: bytes) -> Sequence[Frame]:
        """What clients may see of `data` and of what was kept before."""
        if self._direct and (chunks := regular(data, self._model)):
            self.tokens += chunks
            if self._reader is not None:
                self._reader = None
                self._talking = _with(self._talking, 0)
            if self._rename is not None:
                data = data.replace(*self._rename)
            return (Frame(data),)
        if self.ended:
            return ()
        frames: list[Frame] = []
        self._feed_cut(data, frames)
        return frames

    def finish(self, clean: bool) -> tuple[Sequence[Frame], Outcome]:
        """The last frames, and how the attempt ended. `clean`: the body ended properly, it was not cut."""
        frames: list[Frame] = []
        if not self.ended:
            self._finish_open(clean, frames)
        if self._verdict is None and not self.ended and self._all_finished:
            self._close(frames)
        return frames, self._outcome(clean)

    # ------------------------------------------------------------------------------------------- taking apart

    def _feed_cut(self, data: bytes, frames: list[Frame]) -> None:
        """Let the whole events of a read that begins or ends inside one go straight through."""
        if not self._begun and data:
            self._begun = True
            self._whole = bytearray() if data.startswith(b"{") else None
        if self._whole is not None:
            self._keep_whole(self._whole, data)
            return
        if self.started and not self._direct:
            border = data.find(b"\n\n") + 2
            if 2 <= border < len(data):
                self._feed_events(data[:border], frames)
                frames.extend(self.feed(data[border:]))
                return
        elif self._direct:
            border = data.rfind(b"\n\n") + 2
            if 2 <= border < len(data) and regular(data[:border], self._model):
                frames.extend(self.feed(data[:border]))
                data = data[border:]
        self._feed_events(data, frames)

    def _feed_events(self, data: bytes, frames: list[Frame]) -> None:
        reader = self._reader
        if reader is None:
            reader = self._reader = sse.SseReader(begun=True)
        for event in reader.feed(data):
            self._event(event, frames)
            if self.ended:
                break
        if reader.overflowed and not self.ended:
            self._break("an event is longer than the limit")
        self._direct = self.started and not self.ended and reader.idle

    def _event(self, event: sse.SseEvent, frames: list[Frame]) -> None:
        payload = event.data
        if event.name == b"error":
            self._fail(read_error(payload))
        elif payload == b"[DONE]":
            self._finish_by_mark(frames)
        else:
            chunk = shapes.chunk(payload)
            if chunk is None:
                self._break("an event is not a chunk")
            elif chunk.failed:
                self._fail(read_error(payload))
            else:
                self._chunk(chunk, payload.replace(b"\n", b" "), frames)

    def _chunk(self, chunk: shapes.Chunk, payload: bytes, frames: list[Frame]) -> None:
        payload = self._renamed(chunk, payload)
        choices = chunk.choices or []
        usage = shapes.usage(chunk.usage)
        if usage is not None:
            self.usage = usage
            self._usage_told, self._usage_alone = payload, chunk.choices == []
            self.tokens = usage.completion
        if choices or usage is None:
            if b'"tool_calls"' in payload:
                payload = self._numbered(choices, payload)
            self._pass(choices, sse.event(payload), usage is None, frames)

    def _pass(self, choices: list[shapes.Choice], data: bytes, counted: bool, frames: list[Frame]) -> None:
        """Hand on a chunk, or hold it back; remember which choices it begins and finishes."""
        content = finished = False
        for choice in choices:
            says = choice.has_content
            content = content or says
            if choice.finished:
                finished = True
                self._length_cut = self._length_cut or bytes(choice.finish_reason) == b'"length"'
                self._finished = _with(self._finished, choice.index or 0)
            elif says:
                self._talking = _with(self._talking, choice.index or 0)
        if counted and (content or (self.started and not finished)):
            self.tokens += 1
        if self.started or content or finished:
            self._release(frames)
            frames.append(Frame(data))
        else:
            self._hold(data)

    @property
    def _all_finished(self) -> bool:
        """Each choice that has begun, and at least one, has its finish reason."""
        return bool(self._finished) and self._talking <= self._finished

    def _hold(self, data: bytes) -> None:
        if self._held is None:
            self._held = []
        self._held.append(data)
        self._held_size += len(data)
        if self._held_size > sse.EVENT_LIMIT:
            self._break("too much came before the first content")

    def _release(self, frames: list[Frame]) -> None:
        self.started = True
        if self._held is not None:
            frames.extend([Frame(data) for data in self._held])
            self._held = None

    # ------------------------------------------------------------------------------------- what is put right

    def _renamed(self, chunk: shapes.Chunk, payload: bytes) -> bytes:
        """`payload` with the model's name the client asked for. The exact bytes to replace are worked out once."""
        self._model = chunk.model
        if chunk.model is None or chunk.model == self._call.model:
            return payload
        if self._rename is None or self._rename[0] not in payload:
            for found in _MODEL.finditer(payload):
                if shapes.model_in(found.group()) == chunk.model:
                    name = msgspec.json.encode(self._call.model)
                    self._rename = (found.group(), b'"model":' + name)
                    break
        return payload if self._rename is None else payload.replace(*self._rename)

    def _numbered(self, choices: list[shapes.Choice], payload: bytes) -> bytes:
        """`payload` with the tool calls numbered so that clients can tell them apart; mostly as it came."""
        if self._numbers is None:
            self._numbers = {}
        known = self._numbers
        places: list[list[int]] = []
        wrong = False
        for choice in choices:
            number = choice.index or 0
            calls = choice.tool_calls
            if calls and number not in known and len(known) < _CHOICES_LIMIT:
                known[number] = ToolCallNumbers()
            numbers = known.get(number)
            if numbers is None:
                places.append([])
                continue
            places.append([numbers.place(call.index, call.id) for call in calls])
            wrong |= places[-1] != [call.index for call in calls]
        return shapes.renumbered(payload, places) if wrong else payload

    # ------------------------------------------------------------------------------------------------- the end

    def _finish_by_mark(self, frames: list[Frame]) -> None:
        if not (self.started or self._held or self._usage_told):
            self._break("the stream ended before its first chunk")
            return
        self._close(frames)

    def _close(self, frames: list[Frame]) -> None:
        """The answer is complete: usage once, then the mark once."""
        self._release(frames)
        if self.usage is not None:
            self.tokens = self.usage.completion
            payload = self._usage_told
            if not self._usage_alone:
                payload = shapes.usage_chunk(payload, self._call.model)
            frames.append(Frame(sse.event(payload), usage_only=True))
        frames.append(Frame(DONE))
        self.ended = True
        self._direct = False

    def _finish_open(self, clean: bool, frames: list[Frame]) -> None:
        """What the end of the body left open."""
        if self._whole is not None:
            if clean:
                self._finish_whole(self._whole, frames)
            return
        event = None if self._reader is None else self._reader.finish()
        if event is None:
            return
        if clean or event.data == b"[DONE]" or shapes.chunk(event.data) is not None:
            self._event(event, frames)

    def _keep_whole(self, kept: bytearray, data: bytes) -> None:
        kept += data
        if len(kept) > sse.EVENT_LIMIT:
            self._break("a body instead of a stream is longer than the limit")

    def _finish_whole(self, kept: bytearray, frames: list[Frame]) -> None:
        body, outcome = read_whole(self._call, bytes(kept))
        if outcome.cause is Cause.OK:
            self.started = True
            self.usage = outcome.usage
            frames.extend(split(self._call, body))
        self._end_with(replace(outcome, committed=self.started))

    def _fail(self, error: EngineError) -> None:
        self._end_with(in_band(error, committed=self.started))

    def _break(self, detail: str) -> None:
        cause = Cause.BROKEN_STREAM if self.started else Cause.PROTOCOL
        fault = errors.stream_incomplete() if self.started else None
        self._end_with(Outcome(cause, committed=self.started, status=200, detail=detail, fault=fault))

    def _end_with(self, outcome: Outcome) -> None:
        self._verdict = outcome
        self.ended = True
        self._direct = False
        self._held = None

    def _outcome(self, clean: bool) -> Outcome:
        usage = self.usage
        if usage is None and self.started:
            usage = Usage(prompt=self._call.prompt_tokens, completion=self.tokens, estimated=True)
        if self._verdict is None and not self.ended:
            self._verdict = Outcome(
                Cause.BROKEN_STREAM,
                committed=self.started,
                status=200,
                detail="the body ended before the answer did" if clean else "the connection was cut",
                fault=errors.stream_incomplete() if self.started else None,
            )
        if self._verdict is not None:
            return replace(self._verdict, usage=self._verdict.usage or usage)
        whole = self._all_finished and not self._length_cut
        return Outcome(Cause.OK, usage=usage, committed=self.started, status=200, cacheable=whole)
