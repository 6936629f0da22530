"""Requests in OpenAI's dialect: what is read of a body, and what is refused before anybody waits for it.

Only what deciding needs is read. Every other field belongs to the engine and reaches it as the client wrote it. What is
refused here is what would hurt if it went on: texts that parsers disagree about, values that make engines answer with
500 and so look like their failure, and fields that try to choose the address or the key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple, NoReturn, Required, TypedDict, cast

import msgspec

from headrace.errors import InvalidRequest, invalid_request
from headrace.wire.json_text import (
    DEPTH_LIMIT,
    NEST_LIMIT,
    JsonObject,
    JsonValue,
    decode,
    repeated_key,
    repeats_a_key,
    too_many,
)
from headrace.wire.openai_call import OpenAICall
from headrace.wire.prompt_size import measure

MODEL_NAME_LIMIT = 256
"""Most characters of a model's name."""

_HARMLESS = frozenset({"stream", "stream_options", "user", "metadata", "priority"})
"""Fields that do not change the answer's words."""


def parse(endpoint: str, body: bytes) -> OpenAICall:
    """Read a request to `endpoint` (chat, completions, embeddings).

    Raises:
        InvalidRequest: the body is no JSON object, nests too deep or too much, repeats a key, or a field that the
            gateway reads has a wrong type or value; `fault.param` names the field.
        ValueError: there is no such endpoint.
    """
    kind = _ENDPOINTS.get(endpoint)
    if kind is None:
        raise ValueError(f"no such endpoint: {endpoint}")
    fields, prompt_tokens = _read(body, kind.prompt)
    checks = kind.checks
    for name, value in fields.items():
        if name in checks:
            checks[name](value, name)
    if "model" not in fields:
        _miss("model")
    if kind.needed is not None and kind.needed not in fields and "messages" not in fields:
        _miss(kind.needed)
    checked = cast("_Checked", fields)
    stream, vectors = checked.get("stream") is True, endpoint == "embeddings"
    if stream and vectors:
        _refuse("Embeddings cannot be streamed. Remove 'stream'.", "stream")
    cap, priority = checked.get("max_completion_tokens"), checked.get("priority")
    return OpenAICall(
        endpoint,
        checked["model"],
        stream,
        stream and _include_usage(fields),
        checked.get("max_tokens") if cap is None else cap,
        vectors or checked.get("temperature") == 0,
        checked.get("user"),
        prompt_tokens,
        body,
        # No part of OpenAI's API: what is no whole number belongs to an engine that knows it.
        priority if type(priority) is int else None,
    )


def fingerprint(call: OpenAICall, scope: str) -> bytes:
    """What identical requests of one scope have in common: 32 bytes.

    SHA-256 over the scope, the endpoint and the whole body without the fields that do not change the answer; the
    order of keys and blanks do not count. A field nobody knows counts, so that requests which differ in it never
    share an answer.
    """
    fields = decode(call.body)
    assert isinstance(fields, dict)
    for name in _HARMLESS:
        fields.pop(name, None)
    named = f"{len(scope)}:{scope}:{call.endpoint}:".encode()
    return hashlib.sha256(named + msgspec.json.encode(fields, order="sorted")).digest()


def _refuse(message: str, param: str | None = None) -> NoReturn:
    raise InvalidRequest(invalid_request(message, param=param))


def _miss(name: str) -> NoReturn:
    _refuse(f"'{name}' is missing.{' GET /v1/models lists the models.' if name == 'model' else ''}", name)


def _read(body: bytes, prompt_fields: Container[str]) -> tuple[JsonObject, int]:
    """The body's fields, and how long its prompt is in tokens."""
    if not body or body.isspace():
        _refuse("The body is empty. Send a JSON object.")
    if too_many(body):
        _refuse(f"The body holds more than {NEST_LIMIT:,} lists and objects.")
    try:
        fields = decode(body)
    except RecursionError:
        _refuse_depth()
    except (msgspec.MsgspecError, ValueError) as error:
        _refuse(f"The body is not valid JSON: {_reason(error)}.")
    if not isinstance(fields, dict):
        _refuse("The body must be a JSON object.")
    depth, keys, text, tokens = measure(fields, prompt_fields)
    if depth > DEPTH_LIMIT:
        _refuse_depth()
    if repeats_a_key(body, keys) and (name := repeated_key(body)) is not None:
        _refuse(f"The key '{name[:100]}' is given twice in one object.", name[:100])
    return fields, max(1, text // 4 + tokens)


def _refuse_depth() -> NoReturn:
    _refuse(f"The body nests more than {DEPTH_LIMIT} levels deep.")


def _reason(error: Exception) -> str:
    """The parser's words, which quote nothing of the body."""
    if isinstance(error, UnicodeError) or "UTF-8" in str(error):
        return "it is not UTF-8"
    words = str(error).partition(" - at")[0].removeprefix("JSON is malformed: ")
    return words or "it cannot be read"


class _Checked(TypedDict, total=False):
    """The fields after the checks."""

    model: Required[str]
    stream: bool | None
    max_tokens: int | None
    max_completion_tokens: int | None
    temperature: float | None
    user: str | None
    priority: JsonValue


def _model(value: JsonValue, name: str) -> None:
    if value is None:
        _miss(name)
    if not isinstance(value, str) or not value or value.isspace():
        _refuse(f"'{name}' must be the name of a model.", name)
    if len(value) > MODEL_NAME_LIMIT:
        _refuse(f"'{name}' is longer than {MODEL_NAME_LIMIT} characters.", name)


def _flag(value: JsonValue, name: str) -> None:
    if value is not None and not isinstance(value, bool):
        _refuse(f"'{name}' must be true or false.", name)


def _text(value: JsonValue, name: str) -> None:
    if value is not None and not isinstance(value, str):
        _refuse(f"'{name}' must be a string.", name)


def _count(value: JsonValue, name: str) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31):
        _refuse(f"'{name}' must be a whole number from 1 to 2147483647.", name)


def _temperature(value: JsonValue, name: str) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
        _refuse(f"'{name}' must be a number of at least 0.", name)


def _messages(value: JsonValue, name: str) -> None:
    if value is None:
        _miss(name)
    if not isinstance(value, list) or not value:
        _refuse(f"'{name}' must be a list with at least one message.", name)
    for position, message in enumerate(value):
        if not isinstance(message, dict):
            _refuse(f"Message {position} must be an object.", f"{name}[{position}]")
        if not isinstance(message.get("role"), str):
            _refuse(f"Message {position} must have a 'role'.", f"{name}[{position}].role")


def _text_or_list(value: JsonValue, name: str) -> None:
    if value is None:
        _miss(name)
    if not isinstance(value, str | list):
        _refuse(f"'{name}' must be a string or a list.", name)


def _no_choice(_: JsonValue, name: str) -> None:
    _refuse(f"'{name}' cannot be chosen by a request. Remove it.", name)


def _include_usage(fields: JsonObject) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        _refuse("'stream_options' must be an object.", "stream_options")
    _flag(value := options.get("include_usage"), "stream_options.include_usage")
    return value is True


class _Endpoint(NamedTuple):
    prompt: frozenset[str]
    """The fields that make up the prompt."""
    needed: str | None
    """The field besides the model that no request is without, unless it has messages."""
    checks: Mapping[str, Callable[[JsonValue, str], None]]
    """What fields must be that are given."""


_CHECKS: Mapping[str, Callable[[JsonValue, str], None]] = {
    "model": _model,
    "stream": _flag,
    "max_tokens": _count,
    "max_completion_tokens": _count,
    "n": _count,
    "user": _text,
    "api_base": _no_choice,
    "api_key": _no_choice,
    "base_url": _no_choice,
}
_ENDPOINTS = {
    "chat": _Endpoint(
        frozenset({"messages", "functions", "tools"}),
        "messages",
        {**_CHECKS, "messages": _messages, "temperature": _temperature},
    ),
    "completions": _Endpoint(
        frozenset({"prompt", "suffix"}),
        None,
        {**_CHECKS, "prompt": _text_or_list, "temperature": _temperature},
    ),
    "embeddings": _Endpoint(
        frozenset({"input", "messages"}),
        "input",
        {**_CHECKS, "input": _text_or_list},
    ),
}
