"""What `headrace serve` prints when it starts."""

from __future__ import annotations

import asyncio

from headrace.cli.greeting import ask_models, base_url, greeting, invitation, sample_model, with_listed
from headrace.cli.options import Chosen, choose
from headrace.config import discover_environment
from headrace.model import Engine, Instance, ServedModel, Tier
from headrace.testing import ScriptedConnection, ScriptedEngine


def found(env: dict[str, str]) -> Chosen:
    """What an environment gives without file and flags."""
    config, findings = discover_environment(env)
    return Chosen(config, findings)


def test_it_tells_what_was_found_and_where() -> None:
    """Each engine is shown with its address, its models and the variable that named it, never with its key."""
    text = "\n".join(greeting(found({"OPENAI_API_KEY": "s3cret", "OLLAMA_HOST": "gpu"}), "1.0"))
    assert "ollama: ollama, http://gpu:11434, models * (named by OLLAMA_HOST)" in text
    assert "openai: openai, https://api.openai.com, models gpt-*," in text
    assert "s3cret" not in text


def test_it_tells_how_to_get_a_real_engine() -> None:
    """Where only the echo engine is left, the way to a real one is shown."""
    text = "\n".join(greeting(choose(None, {}, {}), "1.0"))
    assert "echo: echo, built in, models echo" in text
    assert "OLLAMA_HOST" in text


def test_it_tells_when_no_model_is_known_by_name() -> None:
    """An engine that was not there to be asked: interfaces would show an empty list, and nobody would know why."""
    silent = "\n".join(greeting(found({"VLLM_URL": "http://h"}), "1.0"))
    assert "/v1/models lists none" in silent
    known = with_listed(found({"VLLM_URL": "http://h"}), {"vllm": ("m",)}, {})
    assert "lists none" not in "\n".join(greeting(known, "1.0"))


def test_many_models_are_counted() -> None:
    """A long list is cut, not printed."""
    chosen = with_listed(found({"VLLM_URL": "http://h"}), {"vllm": tuple(f"m{n}" for n in range(9))}, {})
    assert "models m0, m1, m2, m3, m4, m5 and 4 more" in "\n".join(greeting(chosen, "1.0"))


def test_one_engine_keeps_the_star() -> None:
    """A single engine serves what it lists by name, and any other name too: it may get models later."""
    chosen = with_listed(found({"VLLM_URL": "http://h"}), {"vllm": ("m", "m", "*")}, {})
    (instance,) = chosen.config.model_instances()
    assert instance.models == (ServedModel(name="m"), ServedModel(name="*"))
    assert chosen.config.warnings() == ()


def test_several_engines_serve_what_they_list() -> None:
    """A model of one engine is not asked of another, and keys stay known."""
    env = {"VLLM_URL": "http://h", "OLLAMA_HOST": "g", "OPENAI_API_KEY": "k"}
    chosen = with_listed(found(env), {"vllm": ("a", "b"), "ollama": ()}, env)
    instances = {instance.id: instance.models for instance in chosen.config.model_instances()}
    assert instances["vllm"] == (ServedModel(name="a"), ServedModel(name="b"))
    assert instances["ollama"] == (ServedModel(name="*"),)
    assert chosen.config.secrets() == {"openai": "k"}


def test_a_file_s_engines_stay_as_written() -> None:
    """What a file says is not changed by what an engine lists."""
    chosen = Chosen(found({"VLLM_URL": "http://h"}).config)
    assert with_listed(chosen, {"vllm": ("m",)}, {}) is chosen


def test_the_line_to_try_names_a_model() -> None:
    """The sample works as it stands wherever a model's name is known."""
    chosen = found({"VLLM_URL": "http://h"})
    assert sample_model(chosen.config, {"vllm": ("org/m",)}) == "org/m"
    assert sample_model(chosen.config, {}) == "MODEL"
    assert sample_model(found({}).config, {}) == "echo"
    (_, line) = invitation("http://127.0.0.1:1", "it's")
    assert line.startswith("  curl http://127.0.0.1:1/v1/chat/completions ")
    assert "'\"'\"'" in line


def test_clients_get_an_address_they_can_reach() -> None:
    """What one listens on is not always what one connects to."""
    assert base_url("0.0.0.0", 1) == "http://127.0.0.1:1"
    assert base_url("::1", 1) == "http://[::1]:1"
    assert base_url("::", 1) == "http://[::1]:1"


async def test_engines_are_asked_for_their_models() -> None:
    """The names come from the engine's own list, asked with its key."""
    async with ScriptedEngine() as engine:
        engine.answers_probes = False
        engine.once(_listing)
        instance = Instance(id="a", address=engine.url, engine=Engine.VLLM, tier=Tier.LOCAL)
        assert await asyncio.to_thread(ask_models, instance, "key") == ("m1", "m2")
        assert engine.requests[0].header("authorization") == "Bearer key"


def test_an_engine_that_is_not_there_has_no_models() -> None:
    """Asking a closed port is no error."""
    assert ask_models(Instance(id="a", address="http://127.0.0.1:1"), None) == ()


async def _listing(conn: ScriptedConnection) -> None:
    await conn.json(200, {"data": [{"id": "m1"}, {"id": "m2"}, {"id": ""}, {"id": 3}, "no"]})
