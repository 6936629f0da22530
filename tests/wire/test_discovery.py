"""What runs behind an address is told from what it lists of itself, and nothing else is taken for an engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model import Engine
from headrace.wire.discovery import Found, look


def listed(*names: str, owner: str = "someone") -> dict[str, object]:
    """A list of models as at `/v1/models`."""
    return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": owner} for name in names]}


LMSTUDIO = {
    "object": "list",
    "data": [
        {"id": "llama-8b", "object": "model", "type": "llm", "state": "loaded", "max_context_length": 131072},
        {"id": "nomic", "object": "model", "type": "embeddings", "state": "not-loaded"},
    ],
}
OLLAMA = {"models": [{"name": "deepseek-r1:latest", "model": "deepseek-r1:latest", "digest": "0a8c"}]}
LLAMACPP = {**listed("smollm2", owner="llamacpp"), "models": [{"name": "smollm2", "model": "smollm2"}]}


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        ({"/v1/models": listed("a", "b", owner="vllm")}, Found(Engine.VLLM, ("a", "b"))),
        ({"/v1/models": listed("a", owner="sglang")}, Found(Engine.SGLANG, ("a",))),
        ({"/v1/models": listed("a", owner="tensorrt_llm")}, Found(Engine.TENSORRT, ("a",))),
        (
            {"/v1/models": LLAMACPP, "/api/tags": LLAMACPP, "/props": {"total_slots": 4}},
            Found(Engine.LLAMACPP, ("smollm2",), 4),
        ),
        ({"/v1/models": LLAMACPP}, Found(Engine.LLAMACPP, ("smollm2",), None)),
        (
            {"/v1/models": listed("deepseek-r1:latest", owner="library"), "/api/tags": OLLAMA},
            Found(Engine.OLLAMA, ("deepseek-r1:latest",)),
        ),
        (
            {"/v1/models": listed("llama-8b", owner="organization_owner"), "/api/v0/models": LMSTUDIO},
            Found(Engine.LMSTUDIO, ("llama-8b", "nomic")),
        ),
        (
            {"/v1/models": listed("t", owner="t"), "/info": {"model_id": "t", "max_concurrent_requests": 128}},
            Found(Engine.TGI, ("t",)),
        ),
        ({"/v1/models": listed("gpt-x")}, Found(Engine.OPENAI, ("gpt-x",))),
        ({"/v1/models": listed()}, Found(Engine.OPENAI, ())),
        ({"/api/tags": {"models": []}}, Found(Engine.OLLAMA, ())),
    ],
)
def test_engines_are_known_by_what_they_list(paths: dict[str, object], found: Found) -> None:
    """Each engine is recognised, llama.cpp in spite of its copy of Ollama's list."""
    assert look(paths.get) == found


def test_a_kind_that_is_named_is_believed() -> None:
    """Whoever says what is there is not contradicted, and only that engine's list is read."""
    assert look({"/v1/models": listed("a", owner="llamacpp")}.get, Engine.VLLM) == Found(Engine.VLLM, ("a",))
    assert look({"/api/tags": OLLAMA, "/v1/models": listed("b")}.get, Engine.OLLAMA) == Found(
        Engine.OLLAMA, ("deepseek-r1:latest",)
    )
    assert look({"/v1/models": listed("a")}.get, Engine.LMSTUDIO) is None


@pytest.mark.parametrize(
    "paths",
    [
        {},
        {"/v1/models": ["a"]},
        {"/v1/models": {"error": "Unexpected endpoint or method."}, "/api/tags": {"error": "no"}},
        {"/v1/models": {"data": "a"}},
    ],
)
def test_what_lists_no_models_is_no_engine(paths: dict[str, object]) -> None:
    """An error in JSON or a list of something else is not taken for an engine without models."""
    assert look(paths.get) is None


def test_names_that_nobody_could_ask_for_are_left_out() -> None:
    """A star would become a pattern; empty, endless and unprintable names are none; the same name counts once."""
    body = {"data": [{"id": name} for name in ("a", "*", "", "a", "x" * 257, "b\n", 5, "c")]}
    assert look({"/v1/models": body}.get) == Found(Engine.OPENAI, ("a", "c"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["data", "models", "id", "name", "state", "type", "owned_by"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["/v1/models", "/api/v0/models", "/api/tags", "/info", "/props"]), JSON))
def test_any_json_is_survived(paths: dict[str, object]) -> None:
    """Whatever answers, the result is an engine with names, or nothing."""
    found = look(paths.get)
    assert found is None or all(found.models)
