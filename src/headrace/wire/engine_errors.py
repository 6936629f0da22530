"""What engines say when they cannot answer, in the shapes they say it, and what it means.

Shapes seen: OpenAI's `{"error": {...}}` with a string or a number as code; a bare text as `error` (Ollama, TGI);
`detail` as text or as a list (FastAPI); the fields at the top (older vLLM); plain text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from headrace.errors import Fault
from headrace.model import Cause, Outcome
from headrace.wire.json_text import JsonObject, JsonValue, decode, too_deep

_TOKEN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_LIMITED_KIND = re.compile(r"rate_?limit|over_?loaded|too_?many_?requests|quota|^(429|529)$", re.IGNORECASE)
_LIMITED_WORDS = re.compile(
    r"server (is )?busy|overloaded|queue (is )?full|max\w* (\w+ )?pending|max_num_queued"
    r"|at (full )?capacity|too many requests",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class EngineError:
    """An engine's error in one shape. Nothing in it has been scrubbed yet."""

    message: str = ""
    type: str = ""
    param: str | None = None
    code: str = ""
    """The engine's code as text, also where it sent a number."""

    @property
    def limited(self) -> bool:
        """It says that the engine has too much to do or limits the rate, not that it failed."""
        kinds = (self.type, self.code)
        return any(map(_LIMITED_KIND.search, kinds)) or _LIMITED_WORDS.search(self.message) is not None

    @property
    def known_type(self) -> str:
        """The type if it is a plain word that can be passed on, else ""."""
        return self.type if _TOKEN.fullmatch(self.type) else ""


def read_error(body: bytes) -> EngineError:
    """The error in `body`, whatever its shape; all fields empty when there is none to be found."""
    try:
        value = None if too_deep(body) else decode(body)
    except (msgspec.MsgspecError, ValueError):
        text = body[:4096].decode("utf-8", "replace").strip()
        return EngineError("" if text.startswith("<") else text)
    return _from_object(value) if isinstance(value, dict) else EngineError()


def in_band(error: EngineError, *, committed: bool) -> Outcome:
    """What an error event in the middle of a 200 answer means.

    `committed`: content has reached the caller. The fault keeps the engine's type; its words stay here, because nobody
    can say what an engine quotes in them.
    """
    kind = error.known_type
    if error.limited:
        cause = Cause.RATE_LIMITED
        message = "The engine limits its rate or has too much to do. Try again later."
    else:
        cause = Cause.BROKEN_STREAM if committed else Cause.SERVER_ERROR
        message = "The engine reported an error before the answer was complete."
    code = "stream_incomplete" if committed else "rate_limit_exceeded" if error.limited else "upstream_error"
    fault = Fault(429 if error.limited and not committed else 502, kind or "server_error", code, message)
    detail = f"error event of type {kind}" if kind else "error event"
    return Outcome(cause, committed=committed, status=200, detail=detail, fault=fault)


def _from_object(value: JsonObject) -> EngineError:
    inner = value.get("error")
    if isinstance(inner, dict):
        return _fields(inner)
    if isinstance(inner, str):
        return EngineError(message=inner, type=_text(value.get("error_type")))
    if "detail" in value:
        return _from_detail(value["detail"])
    return _fields(value)


def _from_detail(detail: JsonValue) -> EngineError:
    """FastAPI's form: a text, or a list of {loc, msg, type}."""
    if isinstance(detail, list):
        first = detail[0] if detail else None
        if isinstance(first, dict):
            where = first.get("loc")
            steps = where[1:] if isinstance(where, list) else []
            param = ".".join(str(step) for step in steps) or None
            return EngineError(message=_text(first.get("msg")), param=param)
    return EngineError(message=_text(detail))


def _fields(value: JsonObject) -> EngineError:
    param = value.get("param")
    return EngineError(
        message=_text(value.get("message")),
        type=_text(value.get("type")),
        param=param[:200] if isinstance(param, str) else None,
        code=_text(value.get("code")),
    )


def _text(value: JsonValue) -> str:
    """A string as it is, a number as its digits, anything else as nothing."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""
