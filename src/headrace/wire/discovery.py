"""What runs behind an address, and which models it has, told from what it lists of itself.

Engines say who they are by the owner of their models (`owned_by` at `/v1/models`: vLLM, SGLang, llama.cpp, TRT-LLM)
or by a list of their own (LM Studio `/api/v0/models`, Ollama `/api/tags`, text-generation-inference `/info`). The
owner is asked for first: llama.cpp has a copy of Ollama's list, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeGuard

from headrace.model import Engine

MODELS, LMSTUDIO, OLLAMA, TGI, LLAMACPP = "/v1/models", "/api/v0/models", "/api/tags", "/info", "/props"
"""Where engines say what they are."""
MOST_MODELS = 1000
"""Names of one engine that are looked at; what it lists beyond them is left out."""
LONGEST_NAME = 256
_OWNERS = {
    "vllm": Engine.VLLM,
    "sglang": Engine.SGLANG,
    "llamacpp": Engine.LLAMACPP,
    "tensorrt_llm": Engine.TENSORRT,
}
_OWN_LISTS = {Engine.LMSTUDIO: LMSTUDIO, Engine.OLLAMA: OLLAMA}

Ask = Callable[[str], object]
"""The JSON at a path of the engine, or None where there is none."""


class Found(NamedTuple):
    """An engine and what it says of itself."""

    engine: Engine
    models: tuple[str, ...]
    """Names in the engine's order, each once; perhaps none."""
    slots: int | None = None
    """Requests it runs at a time, where it says so."""


def look(ask: Ask, kind: Engine | None = None) -> Found | None:
    """What is behind the address that `ask` asks; None: nothing that lists models in a way known here.

    Args:
        ask: gets the JSON at a path.
        kind: what is known to be there; it is believed, and only its own list is read.
    """
    if kind is not None and kind in _OWN_LISTS:
        entries = _own(kind, ask(_OWN_LISTS[kind]))
        return None if entries is None else Found(kind, entries)
    listed = _entries(ask(MODELS), "data")
    if kind is None and listed is not None:
        kind = next((_OWNERS[owner] for entry in listed if (owner := str(entry.get("owned_by"))) in _OWNERS), None)
    if kind is None:
        for engine, path in _OWN_LISTS.items():
            entries = _own(engine, ask(path))
            if entries is not None:
                return Found(engine, entries)
    if listed is None:
        return None
    if kind is None:
        info = ask(TGI)
        known = _is_object(info) and isinstance(info.get("model_id"), str) and "max_concurrent_requests" in info
        kind = Engine.TGI if known else Engine.OPENAI
    return Found(kind, _names(entry.get("id") for entry in listed), _slots(ask) if kind is Engine.LLAMACPP else None)


def _own(engine: Engine, body: object) -> tuple[str, ...] | None:
    """The names in an engine's own list; None if this is not that list."""
    if engine is Engine.OLLAMA:
        tags = _entries(body, "models")
        return None if tags is None else _names(entry.get("name") for entry in tags)
    models = _entries(body, "data")
    if models is None or not all("state" in entry and "type" in entry for entry in models):
        return None
    return _names(entry.get("id") for entry in models)


def _slots(ask: Ask) -> int | None:
    body = ask(LLAMACPP)
    slots = body.get("total_slots") if _is_object(body) else None
    return slots if isinstance(slots, int) and 0 < slots <= 1_000_000 else None


def _entries(body: object, key: str) -> list[dict[str, object]] | None:
    """The objects of a list in a JSON body; None if there is no such list."""
    value = body.get(key) if _is_object(body) else None
    if not _is_list(value):
        return None
    return [entry for entry in value[:MOST_MODELS] if _is_object(entry)]


def _names(values: Iterator[object]) -> tuple[str, ...]:
    """Names that can be asked for: a `*` would be read as a pattern."""
    fit = (v for v in values if isinstance(v, str) and 0 < len(v) <= LONGEST_NAME and "*" not in v and v.isprintable())
    return tuple(dict.fromkeys(fit))


def _is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)
