"""OpenAI's requests as Ollama's own API wants them (docs/api.md of ollama, 2026-08).

What Ollama cannot do is refused, never dropped in silence: several choices, log probabilities, biased tokens, a
forced tool, echo, several prompts in one call, pictures by URL. Fields that change nothing about the words (user,
metadata, store, service_tier, parallel_tool_calls) are left out. Ollama's own fields (options, keep_alive, think) go
through.
"""

from __future__ import annotations

from typing import NoReturn, cast

import msgspec

from headrace.errors import InvalidRequest, invalid_request
from headrace.wire.json_text import JsonObject, JsonValue, decode
from headrace.wire.openai_call import OpenAICall

_OPTIONS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repeat_penalty": "repeat_penalty",
    "num_ctx": "num_ctx",
}
"""OpenAI's field, and Ollama's option."""

_IMPOSSIBLE = ("logprobs", "top_logprobs", "logit_bias", "echo", "functions", "function_call", "audio", "modalities")
_EFFORTS: dict[str, JsonValue] = {"none": False, "minimal": "low"}


def chat(call: OpenAICall, upstream_model: str) -> bytes:
    """The body for `POST /api/chat`."""
    fields = _fields(call)
    body = _shared(call, fields, upstream_model)
    body["messages"] = _messages(cast("list[JsonObject]", fields["messages"]))
    tools = fields.get("tools")
    choice = fields.get("tool_choice") or "auto"
    if choice not in ("auto", "none"):
        _refuse("This engine cannot be made to call a tool: only 'auto' and 'none' are possible.", "tool_choice")
    if tools and choice == "auto":
        body["tools"] = tools
    return msgspec.json.encode(body)


def generate(call: OpenAICall, upstream_model: str) -> bytes:
    """The body for `POST /api/generate`."""
    fields = _fields(call)
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        _refuse("This engine takes one prompt of text in a call.", "prompt")
    body = _shared(call, fields, upstream_model)
    body["prompt"] = prompt
    if fields.get("suffix"):
        body["suffix"] = fields["suffix"]
    return msgspec.json.encode(body)


def embed(call: OpenAICall, upstream_model: str) -> bytes:
    """The body for `POST /api/embed`."""
    fields = _fields(call)
    given = fields.get("input")
    texts = given if isinstance(given, list) else [given]
    if not all(isinstance(text, str) for text in texts):
        _refuse("This engine embeds texts, not token numbers.", "input")
    body: JsonObject = {"model": upstream_model, "input": given, "truncate": False}
    for name in ("dimensions", "keep_alive", "options", "truncate"):
        if fields.get(name) is not None:
            body[name] = fields[name]
    return msgspec.json.encode(body)


def _refuse(message: str, param: str) -> NoReturn:
    raise InvalidRequest(invalid_request(message, param=param))


def _fields(call: OpenAICall) -> JsonObject:
    fields = cast("JsonObject", decode(call.body))
    for name in _IMPOSSIBLE:
        if fields.get(name) and not (name == "modalities" and fields[name] == ["text"]):
            _refuse(f"This engine cannot do '{name}'. Remove it or choose another model.", name)
    for name in ("n", "best_of"):
        if fields.get(name) not in (None, 1):
            _refuse("This engine gives one answer in a call.", name)
    return fields


def _shared(call: OpenAICall, fields: JsonObject, upstream_model: str) -> JsonObject:
    """What chat and completions have in common."""
    body: JsonObject = {"model": upstream_model, "stream": call.stream}
    options = _options(call, fields)
    if options:
        body["options"] = options
    wanted = _format(fields.get("response_format"))
    if wanted is not None:
        body["format"] = wanted
    effort = fields.get("reasoning_effort")
    if isinstance(effort, str):
        body["think"] = _EFFORTS.get(effort, effort)
    for name in ("think", "keep_alive"):
        if fields.get(name) is not None:
            body[name] = fields[name]
    return body


def _options(call: OpenAICall, fields: JsonObject) -> JsonObject:
    own = fields.get("options")
    options: JsonObject = {theirs: fields[name] for name, theirs in _OPTIONS.items() if fields.get(name) is not None}
    if call.output_cap is not None:
        options["num_predict"] = call.output_cap
    stop = fields.get("stop")
    if stop:
        options["stop"] = [stop] if isinstance(stop, str) else stop
    return {**options, **own} if isinstance(own, dict) else options


def _format(response_format: JsonValue) -> JsonValue:
    if not isinstance(response_format, dict):
        return None
    kind = response_format.get("type")
    if kind == "json_schema":
        schema = response_format.get("json_schema")
        return schema.get("schema") if isinstance(schema, dict) else "json"
    return "json" if kind == "json_object" else None


def _messages(messages: list[JsonObject]) -> list[JsonValue]:
    names: dict[str, str] = {}
    return [_message(message, f"messages[{position}]", names) for position, message in enumerate(messages)]


def _message(message: JsonObject, where: str, names: dict[str, str]) -> JsonObject:
    """One message. `names` collects which tool a call's id stands for: Ollama's tool messages name the tool."""
    role = message["role"]
    text, images = _content(message.get("content"), where)
    out: JsonObject = {"role": "system" if role == "developer" else role, "content": text}
    if images:
        out["images"] = images
    thinking = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thinking, str):
        out["thinking"] = thinking
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        out["tool_calls"] = [_tool_call(call, where, names) for call in calls]
    call_id = message.get("tool_call_id")
    if role == "tool" and isinstance(call_id, str):
        out["tool_call_id"] = call_id
        out["tool_name"] = message.get("name") or names.get(call_id, "")
    return out


def _content(content: JsonValue, where: str) -> tuple[str, list[JsonValue]]:
    """The text, and the pictures as base64."""
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        _refuse("'content' must be a string or a list of parts.", f"{where}.content")
    texts: list[str] = []
    images: list[JsonValue] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, dict) and kind == "text" and isinstance(part.get("text"), str):
            texts.append(cast("str", part["text"]))
        elif isinstance(part, dict) and kind == "image_url":
            images.append(_image(part.get("image_url"), where))
        else:
            _refuse("This engine takes parts of type text and image_url.", f"{where}.content")
    return "\n".join(texts), images


def _image(image: JsonValue, where: str) -> str:
    url = image.get("url") if isinstance(image, dict) else image
    if isinstance(url, str) and url.startswith("data:"):
        head, comma, data = url.partition(",")
        if comma and head.endswith(";base64"):
            return data
    _refuse("This engine takes pictures as base64 data URLs only.", f"{where}.content")


def _tool_call(call: JsonValue, where: str, names: dict[str, str]) -> JsonObject:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        _refuse("A tool call must have a 'function'.", f"{where}.tool_calls")
    name, call_id = function.get("name"), call.get("id")
    if isinstance(name, str) and isinstance(call_id, str):
        names[call_id] = name
    return {"id": call_id, "function": {"name": name, "arguments": _arguments(function.get("arguments"), where)}}


def _arguments(arguments: JsonValue, where: str) -> JsonValue:
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        return decode(arguments.encode() or b"{}")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        _refuse("The arguments of a tool call must be a JSON text.", f"{where}.tool_calls")
