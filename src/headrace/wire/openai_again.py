"""A request that is sent again long after its caller has gone: whole instead of streamed, perhaps to another model."""

from __future__ import annotations

import msgspec

from headrace.wire.json_text import decode, too_deep

_OF_STREAMS = ("stream", "stream_options")


def again(body: bytes, model: str | None = None) -> bytes:
    """`body` as it is sent again; `model` replaces the one it asks for. Every other field stays as it was.

    Raises ValueError for a body that is no JSON object.
    """
    if too_deep(body):
        raise ValueError("it nests too deep")
    try:
        fields = decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError("it is no JSON") from error
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - what was sent is wrong, not our call
    kept = {name: value for name, value in fields.items() if name not in _OF_STREAMS}
    return msgspec.json.encode({**kept, "model": model} if model is not None else kept)
