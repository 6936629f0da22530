"""Whole answers (one JSON body) of OpenAI-shaped engines."""

from __future__ import annotations

from typing import Final, cast

import msgspec

from headrace.model import Cause, Outcome, Usage
from headrace.wire import openai_shapes as shapes
from headrace.wire.engine_errors import in_band, read_error
from headrace.wire.json_text import JsonObject, decode_answer, encode_answer
from headrace.wire.openai_call import OpenAICall

_OK: Final = Cause.OK
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_whole(call: OpenAICall, body: bytes) -> tuple[bytes, Outcome]:
    """The body for the client, and how the attempt ended.

    The body is the engine's own, except that `model` is the name the client asked for. One that is no answer to this
    kind of call is PROTOCOL, an error inside a 200 is judged by its type; both come with an empty body.
    """
    answer = None if call.endpoint == "embeddings" else shapes.plain_answer(body)
    if answer is None or (answer.model is not None and answer.model != call.model):
        return _read_closely(call, body)
    cacheable = True
    for choice in answer.choices:
        if choice.finish_reason == "length":
            cacheable = False
    usage = None if answer.usage is None else shapes.counted(answer.usage)
    if usage is None:
        usage = Usage(call.prompt_tokens, len(body) // 4, estimated=True)
    return body, Outcome(_OK, usage, True, status=200, cacheable=cacheable)


def _read_closely(call: OpenAICall, body: bytes) -> tuple[bytes, Outcome]:
    answer = shapes.chunk(body)
    if answer is None:
        return b"", Outcome(Cause.PROTOCOL, status=200, detail="the body is not an answer")
    if answer.failed:
        return b"", in_band(read_error(body), committed=False)
    if not (bytes(answer.data) not in shapes.EMPTY if call.endpoint == "embeddings" else answer.choices):
        return b"", Outcome(Cause.PROTOCOL, status=200, detail="the body holds no answer")
    if answer.model is not None and answer.model != call.model:
        body = _renamed(body, call.model)
    written = 0 if call.endpoint == "embeddings" else len(body) // 4
    usage = shapes.usage(answer.usage) or Usage(call.prompt_tokens, written, estimated=True)
    cut = any(bytes(choice.finish_reason) == b'"length"' for choice in answer.choices or [])
    return body, Outcome(Cause.OK, usage=usage, committed=True, status=200, cacheable=not cut)


def _renamed(body: bytes, model: str) -> bytes:
    try:
        return msgspec.json.encode({**_FIELDS.decode(body), "model": model})
    except msgspec.MsgspecError:  # half a surrogate pair
        return encode_answer({**cast("JsonObject", decode_answer(body)), "model": model})
