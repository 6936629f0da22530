"""What the runtime needs to know of an engine's dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from headrace.model import Instance, Outcome, ServiceClass, Usage
from headrace.wire.frames import Frame
from headrace.wire.openai_call import OpenAICall


class EngineRequest(msgspec.Struct, frozen=True, gc=False):
    """What goes to an engine.

    `path` is put behind the instance's address; the HTTP client adds the length of `body`.
    """

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def __repr__(self) -> str:
        """Without the key in the headers, and without what was asked."""
        return f"EngineRequest({self.method} {self.path}, {len(self.body)} bytes)"


class Decoder(Protocol):
    """One streamed answer of an engine: bytes in, frames for clients out. It waits for nothing."""

    started: bool
    """Content was seen: the commit point has passed. Frames come only from then on."""
    ended: bool
    """A terminal event was seen: nothing more is needed of the engine, what comes is ignored."""
    tokens: int
    """Tokens so far: one for each chunk with content, or the engine's own count where it reports one."""
    usage: Usage | None
    """As the engine reported it; None while it has not."""

    def feed(self, data: bytes) -> Sequence[Frame]:
        """The frames that `data` completes."""
        ...

    def finish(self, clean: bool) -> tuple[Sequence[Frame], Outcome]:
        """The last frames and the attempt's outcome; once. `clean`: the body ended properly, it was not cut."""
        ...


class Adapter(Protocol):
    """An engine's dialect. Stateless: one for all instances of the engine."""

    def encode(
        self,
        call: OpenAICall,
        instance: Instance,
        upstream_model: str,
        key: str | None,
        service_class: ServiceClass = ServiceClass.NORMAL,
    ) -> EngineRequest:
        """The request for the engine. `key` is the instance's own; nothing of the client's headers is in it.

        `service_class` is told to the engine as a priority if the instance says so and the engine knows priorities.

        Raises:
            InvalidRequest: the engine has no way to do what the call asks.
        """
        ...

    def decoder(self, call: OpenAICall) -> Decoder:
        """For the answer to a call with `stream`."""
        ...

    def whole(self, call: OpenAICall, body: bytes) -> tuple[bytes, Outcome]:
        """A whole 200 body as the client's body, and the outcome. The body is empty unless the outcome is OK."""
        ...

    def refused(
        self, status: int, headers: Mapping[str, str], body: bytes, now_wall: float, secrets: Sequence[str]
    ) -> Outcome:
        """The outcome of an answer other than 2xx. `headers` have lower-case names, `now_wall` is Unix time."""
        ...

    def health(self, instance: Instance, key: str | None) -> EngineRequest:
        """A request that costs no tokens and that a healthy engine answers with 2xx."""
        ...
