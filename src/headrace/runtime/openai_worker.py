"""A server that speaks OpenAI's API as a worker of the library: prompts go out as chat requests, text comes back.

The attempt itself is that of the server: the same client, decoder, timeouts and verdicts.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from headrace.model import AnswerForm, Dispatch, Engine, Instance, Outcome
from headrace.runtime.attempts import HttpBackend
from headrace.runtime.backend import Port, Running, Timeouts
from headrace.runtime.client import new_client
from headrace.runtime.prompts import Prepared, PromptRequest
from headrace.wire.frames import Frame
from headrace.wire.openai import OpenAICall, parse
from headrace.wire.sse import SseReader


class OpenAIWorker:
    """Asks `model` at `address`.

    Args:
        address: the server (`http://gpu-1:8000`) or its API's root (`https://api.example.com/v1`).
        model: the model's name there; None: the one each prompt names.
        key: sent as `Authorization: Bearer`; never shown.
        stream: let the answer come token by token.
        engine: what software it is, where its dialect differs.
    """

    def __init__(
        self,
        address: str,
        *,
        model: str | None = None,
        key: str | None = None,
        stream: bool = True,
        engine: Engine = Engine.OPENAI,
    ) -> None:
        self._address = address.rstrip("/")
        self._model = model
        self._key = key
        self._stream = stream
        self._engine = engine

    def attempt_backend(self, timeouts: Timeouts) -> OpenAIBackend:
        """What carries out the attempts; it owns a connection pool."""
        place = Instance(id="", address=self._address, engine=self._engine)
        return OpenAIBackend(place, self._model, self._key, timeouts, stream=self._stream)


class OpenAIBackend:
    """Attempts at one server, with prompts as payload."""

    def __init__(
        self, place: Instance, model: str | None, key: str | None, timeouts: Timeouts, *, stream: bool
    ) -> None:
        self._place = place
        self._model = model
        self._stream = stream
        self._upstream = new_client()
        self._http = HttpBackend(self._upstream, {} if key is None else {place.id: key}, timeouts)

    def start(self, dispatch: Dispatch, port: Port) -> Running:
        """Send the prompt.

        Raises:
            InvalidRequest: the prompt cannot be asked, for a name or a bound that no server takes.
            TypeError: the payload is no prompt.
        """
        payload: object = dispatch.request.payload
        prompt = payload.prompt if isinstance(payload, Prepared) else payload
        if not isinstance(prompt, PromptRequest):
            raise TypeError("an OpenAI worker takes prompts")
        call = self._call(prompt)
        form = AnswerForm.STREAM if self._stream else AnswerForm.WHOLE
        request = replace(dispatch.request, payload=call, form=form)
        sent = replace(dispatch, instance=self._place, upstream_model=call.model, request=request)
        return self._http.start(sent, _StreamPort(port) if self._stream else _WholePort(port))

    async def close(self) -> None:
        """Close all connections."""
        await self._upstream.close()

    def _call(self, prompt: PromptRequest) -> OpenAICall:
        fields: dict[str, object] = {
            "model": self._model or prompt.model,
            "messages": [{"role": "user", "content": prompt.input}],
            "stream": self._stream,
        }
        if prompt.max_tokens is not None:
            fields["max_completion_tokens"] = prompt.max_tokens
        return parse("chat", msgspec.json.encode(fields))


class _Said(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Said = msgspec.field(default_factory=_Said)
    message: _Said = msgspec.field(default_factory=_Said)


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []


_ANSWER = msgspec.json.Decoder(_Answer)


class _WholePort:
    """Hands on the text of a whole answer."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def started(self) -> None:
        """The answer begins."""
        self._port.started()

    def feed(self, frame: Frame) -> None:
        """The body."""
        choices = _ANSWER.decode(frame.data).choices
        self._port.feed(Frame(((choices[0].message.content if choices else None) or "").encode()))

    def progressed(self, tokens: int) -> None:
        """So many more tokens."""
        self._port.progressed(tokens)

    def finished(self, outcome: Outcome) -> None:
        """The end."""
        self._port.finished(outcome)


class _StreamPort(_WholePort):
    """Hands on the text of a stream's chunks."""

    def __init__(self, port: Port) -> None:
        super().__init__(port)
        self._reader = SseReader()

    def feed(self, frame: Frame) -> None:
        """One or more events."""
        for event in self._reader.feed(frame.data):
            if event.data != b"[DONE]":
                choices = _ANSWER.decode(event.data).choices
                text = choices[0].delta.content if choices else None
                if text:
                    self._port.feed(Frame(text.encode()))
