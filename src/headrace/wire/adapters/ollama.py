"""Ollama's own API: `/api/chat`, `/api/generate`, `/api/embed`.

Its OpenAI-shaped API works through the `openai` adapter; the own one knows more of the engine (thinking, options,
keep_alive) and reports counts always.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from headrace.model import Cause, Instance, Outcome, ServiceClass, Usage
from headrace.wire.adapters import ollama_request
from headrace.wire.adapters.contract import Decoder, EngineRequest
from headrace.wire.adapters.ollama_stream import OllamaDecoder
from headrace.wire.adapters.openai import headers
from headrace.wire.engine_errors import in_band, read_error
from headrace.wire.openai_answer import assemble
from headrace.wire.openai_call import OpenAICall
from headrace.wire.openai_text import usage_fields
from headrace.wire.refusals import refused


class _Embeddings(msgspec.Struct):
    embeddings: list[list[float]]
    prompt_eval_count: int | None = None


class _Wish(msgspec.Struct):
    encoding_format: str | None = None


_EMBEDDINGS = msgspec.json.Decoder(_Embeddings)


class OllamaAdapter:
    """Ollama's dialect."""

    def encode(
        self,
        call: OpenAICall,
        instance: Instance,
        upstream_model: str,
        key: str | None,
        service_class: ServiceClass = ServiceClass.NORMAL,
    ) -> EngineRequest:
        """The call in Ollama's words; see `ollama_request` for what is refused.

        Raises:
            InvalidRequest: Ollama cannot do what the call asks, and leaving it out would change the answer.
        """
        del instance, service_class  # the API stands at the root of every Ollama, and knows no priorities
        if call.endpoint == "chat":
            path, body = "/api/chat", ollama_request.chat(call, upstream_model)
        elif call.endpoint == "completions":
            path, body = "/api/generate", ollama_request.generate(call, upstream_model)
        else:
            path, body = "/api/embed", ollama_request.embed(call, upstream_model)
        accept = "application/x-ndjson" if call.stream else "application/json"
        return EngineRequest("POST", path, headers(key, accept), body)

    def decoder(self, call: OpenAICall) -> Decoder:
        """For the answer to a call with `stream`."""
        return OllamaDecoder(call)

    def whole(self, call: OpenAICall, body: bytes) -> tuple[bytes, Outcome]:
        """A whole answer: a stream of one line, put together; or embeddings."""
        if call.endpoint == "embeddings":
            return _embeddings(call, body)
        decoder = OllamaDecoder(call)
        frames = list(decoder.feed(body))
        rest, outcome = decoder.finish(clean=True)
        if outcome.cause is not Cause.OK:
            cause = Cause.PROTOCOL if outcome.cause is Cause.BROKEN_STREAM else outcome.cause
            return b"", replace(outcome, cause=cause, committed=False)
        return assemble(call, [*frames, *rest]), outcome

    def refused(
        self, status: int, headers: Mapping[str, str], body: bytes, now_wall: float, secrets: Sequence[str]
    ) -> Outcome:
        """The outcome of an answer other than 2xx."""
        return refused(status, headers, body, now_wall, secrets)

    def health(self, instance: Instance, key: str | None) -> EngineRequest:
        """The version, which is answered without loading a model."""
        del instance
        return EngineRequest("GET", "/api/version", headers(key, "*/*", has_body=False), b"")


def _embeddings(call: OpenAICall, body: bytes) -> tuple[bytes, Outcome]:
    try:
        answer = _EMBEDDINGS.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        error = read_error(body)
        if error.message:
            return b"", in_band(error, committed=False)
        return b"", Outcome(Cause.PROTOCOL, status=200, detail="the body is not an answer")
    usage = Usage(call.prompt_tokens, estimated=True)
    if answer.prompt_eval_count is not None:
        usage = Usage(prompt=max(0, answer.prompt_eval_count))
    packed = msgspec.json.decode(call.body, type=_Wish).encoding_format == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _pack(vector) if packed else vector}
        for index, vector in enumerate(answer.embeddings)
    ]
    counts = usage_fields(usage)
    del counts["completion_tokens"]
    whole = {"object": "list", "data": data, "model": call.model, "usage": counts}
    return msgspec.json.encode(whole), Outcome(Cause.OK, usage=usage, committed=True, status=200)


def _pack(vector: list[float]) -> str:
    """Little-endian 32-bit floats in base64, as OpenAI packs them and its clients ask for."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
