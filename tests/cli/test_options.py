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
        ("ollama=h", None, Engine.OLLAMA, "http://h:11434", "*"),
        ("ollama", None, Engine.OLLAMA, "http://127.0.0.1:11434", "*"),
        ("vllm", "m", Engine.VLLM, "http://127.0.0.1:8000", "m"),
    ],
)
def test_one_engine_can_be_named(engine: str, model: str | None, kind: Engine, address: str | None, name: str) -> None:
    """`--engine` is echo, a URL, a kind and an address, or a kind on this machine, and replaces everything else."""
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


@pytest.mark.parametrize(
    ("engine", "host", "port"),
    [
        ("http://127.0.0.1:8080/v1", "127.0.0.1", 8080),
        ("llamacpp", "127.0.0.1", 8080),
        ("http://localhost:9000", "0.0.0.0", 9000),
        ("http://[::1]", "::", 80),
        ("http://gpu-box:9000", "gpu-box", 9000),
    ],
)
def test_a_gateway_is_not_its_own_engine(engine: str, host: str, port: int) -> None:
    """llama.cpp's usual port is headrace's, too: an engine named there would be asked by itself, without end."""
    flags = {"server.host": host, "server.port": port, "server.insecure": True}
    with pytest.raises(Refused, match=rf"where headrace itself is to listen.* --port {port + 1}"):
        choose(None, {}, flags, engine=engine)


def test_another_port_or_machine_is_another_engine() -> None:
    """What only looks alike is let through."""
    flags = {"server.port": 8080}
    for engine in ("http://127.0.0.1:8081", "http://gpu-box:8080", "https://127.0.0.1"):
        assert choose(None, {}, flags, engine=engine).config.instances
