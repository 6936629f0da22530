"""Any server that speaks OpenAI's API: OpenAI, LM Studio, cloud providers, and by it most engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from headrace.model import Instance, Outcome, ServiceClass
from headrace.wire.adapters.addresses import api_path, is_api_root
from headrace.wire.adapters.contract import Decoder, EngineRequest
from headrace.wire.continuation import continued
from headrace.wire.openai_call import OpenAICall
from headrace.wire.openai_continued import ContinuedDecoder
from headrace.wire.openai_stream import OpenAIDecoder
from headrace.wire.openai_whole import read_whole
from headrace.wire.refusals import refused

_PATHS = {"chat": "/chat/completions", "completions": "/completions", "embeddings": "/embeddings"}
GOES_ON = {"continue_final_message": True, "add_generation_prompt": False}
"""vLLM's and SGLang's fields, which other servers took over."""
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ASKS = b'"stream_options":{"include_usage":true},'
"""The wish for usage, as the first field of a request that has others."""


class OpenAIAdapter:
    """OpenAI's own dialect: bodies go through with the model renamed and usage asked for.

    Args:
        health_path: the engine's own health check; None asks for the list of models.
        urgent: what the engine's `priority` of an urgent request is, -1 or 1; 0: it knows no such field, and servers
            that know OpenAI's fields only refuse a request that has it.
        goes_on: the fields that make a chat go on from its last message, where that is the assistant's.
    """

    def __init__(self, health_path: str | None = None, urgent: int = 0, goes_on: Mapping[str, bool] = GOES_ON) -> None:
        self._health_path = health_path
        self._urgent = urgent
        self._goes_on = goes_on

    def encode(
        self,
        call: OpenAICall,
        instance: Instance,
        upstream_model: str,
        key: str | None,
        service_class: ServiceClass = ServiceClass.NORMAL,
    ) -> EngineRequest:
        """The client's body; a field that needs no change keeps the very bytes the client wrote."""
        if call.continuation is not None:
            call = continued(call, self._goes_on)
        path, fields = _head(instance.address, call.endpoint, key, call.stream)
        priority = call.priority if self._urgent else None
        if instance.forward_priority and self._urgent:
            priority = self._urgent * (ServiceClass.NORMAL.rank - service_class.rank)
        return EngineRequest("POST", path, fields, _body(call, upstream_model, priority))

    def decoder(self, call: OpenAICall) -> Decoder:
        """For the answer to a call with `stream`."""
        part = call.continuation
        return OpenAIDecoder(call) if part is None else ContinuedDecoder(call, part)

    def whole(self, call: OpenAICall, body: bytes) -> tuple[bytes, Outcome]:
        """The engine's body with the model's name the client asked for."""
        return read_whole(call, body)

    def refused(
        self, status: int, headers: Mapping[str, str], body: bytes, now_wall: float, secrets: Sequence[str]
    ) -> Outcome:
        """The outcome of an answer other than 2xx."""
        return refused(status, headers, body, now_wall, secrets)

    def health(self, instance: Instance, key: str | None) -> EngineRequest:
        """The engine's health check, or the list of models where only the API can be reached."""
        if self._health_path is None or is_api_root(instance.address):
            path = api_path(instance.address, "/models")
        else:
            path = self._health_path
        return EngineRequest("GET", path, headers(key, "*/*", has_body=False), b"")


def headers(key: str | None, accept: str, *, has_body: bool = True) -> tuple[tuple[str, str], ...]:
    """All headers of a request to an engine. Uncompressed is asked for, so that frames come as they are made."""
    fields = [("accept", accept), ("accept-encoding", "identity")]
    if has_body:
        fields.insert(0, ("content-type", "application/json"))
    if key:
        fields.append(("authorization", f"Bearer {key}"))
    return tuple(fields)


@lru_cache(maxsize=1024)
def _head(address: str, endpoint: str, key: str | None, stream: bool) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Path and headers of a call: the same objects for all calls alike, so that whoever looks them up finds them."""
    return api_path(address, _PATHS[endpoint]), headers(key, "text/event-stream" if stream else "application/json")


def _body(call: OpenAICall, upstream_model: str, priority: int | None) -> bytes:
    """`call.body` itself if nothing is to be changed; else its top-level values put together again, unread."""
    asks = call.stream and not call.include_usage
    body = call.body
    if upstream_model == call.model and priority == call.priority:
        if not asks:
            return body
        if b"stream_options" not in body and b"\\u" not in body:  # which could spell it otherwise
            before, brace, after = body.partition(b"{")
            return b"%b%b%b%b" % (before, brace, _ASKS, after)
    fields: dict[str, object] = {**_FIELDS.decode(body), "model": upstream_model}
    if priority is not None:
        fields["priority"] = priority
    elif call.priority is not None:
        del fields["priority"]
    if asks:
        given = fields.get("stream_options")
        options = _FIELDS.decode(given) if isinstance(given, msgspec.Raw) and bytes(given) != b"null" else {}
        fields["stream_options"] = {**options, "include_usage": True}
    return msgspec.json.encode(fields)
