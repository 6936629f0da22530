"""From flags, environment and file to the configuration that is in force."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli import Refused
from headrace.cli.options import choose
from headrace.errors import ConfigError
from headrace.model import Engine, ServedModel


def test_a_file_names_the_engines(tmp_path: Path) -> None:
    """With instances in the file the environment's engines are not used."""
    path = tmp_path / "c.yaml"
    path.write_text("instances: [{id: mine, engine: echo}]")
    chosen = choose(path, {"OLLAMA_HOST": "h"}, {})
    assert [instance.id for instance in chosen.config.model_instances()] == ["mine"]
    assert chosen.findings == ()


def test_a_file_without_engines_takes_those_of_the_environment(tmp_path: Path) -> None:
    """A file may set only the rest."""
    path = tmp_path / "c.yaml"
    path.write_text("scheduling: {policy: fifo}")
    chosen = choose(path, {"OLLAMA_HOST": "h"}, {})
    assert [instance.id for instance in chosen.config.model_instances()] == ["ollama"]
    assert chosen.config.scheduling.policy == "fifo"


@pytest.mark.parametrize(
    ("engine", "model", "kind", "address", "name"),
    [
        ("echo", None, Engine.ECHO, "", "echo"),
        ("echo", "m", Engine.ECHO, "", "m"),
        ("http://h:1/v1", None, Engine.OPENAI, "http://h:1", "*"),
        ("http://h:1/?a", "m", Engine.OPENAI, None, "m"),
        ("vllm=http://h:1", "m", Engine.VLLM, "http://h:1", "m"),
        ("ollama=h:1", None, Engine.OLLAMA, "http://h:1", "*"),
    ],
)
def test_one_engine_can_be_named(engine: str, model: str | None, kind: Engine, address: str | None, name: str) -> None:
    """`--engine` is echo, a URL, or a kind and an address, and replaces everything else."""
    if address is None:
        with pytest.raises(ConfigError, match="--engine: the address must not hold a query"):
            choose(None, {}, {}, engine=engine, model=model)
        return
    (instance,) = choose(None, {"VLLM_URL": "http://x"}, {}, engine=engine, model=model).config.model_instances()
    assert (instance.engine, instance.address, instance.models) == (kind, address, (ServedModel(name=name),))


def test_an_unknown_kind_is_refused() -> None:
    """A kind of engine that does not exist is named with those that do."""
    with pytest.raises(ConfigError, match="'vlm' is no kind of engine; there are openai, vllm"):
        choose(None, {}, {}, engine="vlm=http://h")


def test_a_model_alone_means_nothing() -> None:
    """`--model` belongs to `--engine`."""
    with pytest.raises(Refused, match="--model names the model of --engine"):
        choose(None, {}, {}, model="m")


def test_insecure_opens_the_door() -> None:
    """Other machines are served when that is said."""
    flags = {"server.host": "0.0.0.0", "server.insecure": True}
    assert choose(None, {}, flags, engine="echo").config.server.host == "0.0.0.0"
    with pytest.raises(Refused, match="listening on 0"):
        choose(None, {"HEADRACE_HOST": "0.0.0.0"}, {}, engine="echo")
