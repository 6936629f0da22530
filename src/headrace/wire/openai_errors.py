"""Faults in OpenAI's form: always the four fields message, type, param and code."""

from __future__ import annotations

import msgspec

from headrace.errors import Fault
from headrace.wire import sse


def error_body(fault: Fault) -> bytes:
    """`fault` as a JSON body; one an engine wrote itself is passed on as it came."""
    if fault.body is not None:
        return fault.body
    fields = {"message": fault.message, "type": fault.type, "param": fault.param, "code": fault.code}
    return msgspec.json.encode({"error": fields})


def error_frame(fault: Fault) -> bytes:
    """`fault` as the last event of a stream. No `[DONE]` follows it: the answer is not complete."""
    return sse.event(b" ".join(error_body(fault).split(b"\n")))
