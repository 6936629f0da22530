"""A request in OpenAI's dialect, as it is handed on after it was read (`openai_request`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from headrace.wire.continuation import Continuation


class OpenAICall(msgspec.Struct, frozen=True, gc=False):
    """A request as far as the gateway reads it; `body` is what the client sent."""

    endpoint: str
    """chat, completions or embeddings."""
    model: str
    stream: bool
    include_usage: bool
    """The client asked for a chunk with usage at the end of the stream."""
    output_cap: int | None
    """Most tokens of the answer, as the client said."""
    deterministic: bool
    """The same request gives the same answer: temperature is given as 0, or it asks for embeddings."""
    user: str | None
    prompt_tokens: int
    """Estimated, at least 1."""
    body: bytes
    priority: int | None = None
    """The body's `priority` where it is a whole number: vLLM's field, lower first, 0 by default."""
    continuation: Continuation | None = None
    """The part of the answer that there is already; the rest is asked for."""

    def __repr__(self) -> str:
        """Without what was asked and answered: that is nobody's business but the caller's."""
        return f"OpenAICall({self.endpoint}, {self.model!r}, {len(self.body)} bytes)"
