"""Where the configuration's values come from: variables, flags, the environment's engines."""

from __future__ import annotations

import pytest

from headrace.config import discover_environment, load
from headrace.config.environment import OPENAI_NAMES, address_of
from headrace.errors import ConfigError
from headrace.model import Engine, ServedModel, Tier
from tests.written import Written, refusal

# ----------------------------------------------------------------------------------------------- secrets, precedence


def test_variables_are_filled_in(written: Written) -> None:
    """`${env:NAME}` stands for the variable, in any text and for any type."""
    path = written('server: {port: "${env:P}"}\ninstances: [{address: "http://${env:H}:1"}]')
    config = load(path, {"P": "9", "H": "gpu"})
    assert config.server.port == 9
    assert config.model_instances()[0].address == "http://gpu:1"


def test_a_variable_cannot_change_the_structure(written: Written) -> None:
    """What a variable holds is text, never YAML."""
    path = written('instances: [{engine: echo, metadata: {note: "${env:N}"}}]')
    config = load(path, {"N": "x}, {engine: echo"})
    assert config.instances[0].metadata == {"note": "x}, {engine: echo"}


def test_a_missing_variable_is_named(written: Written) -> None:
    """An unset variable is an error that names the key and the variable."""
    message = refusal(written, 'server: {host: "${env:NOPE}"}')
    assert message == "server.host: the environment variable NOPE is not set"


def test_a_missing_key_is_named(written: Written) -> None:
    """A key that is not set is found at the start, not at the first request."""
    message = refusal(written, 'instances: [{address: "http://h", api_key_env: K}]', {"K": " "})
    assert message.endswith("instances[0].api_key_env: the environment variable K is not set")


def test_secrets_are_never_shown(written: Written) -> None:
    """Neither the printed configuration nor an error holds a value from the environment."""
    path = written('instances: [{id: c, address: "http://h", api_key_env: K}]')
    config = load(path, {"K": "s3cret"})
    assert "s3cret" not in repr(config) + config.model_dump_json()
    message = refusal(written, 'scheduling: {policy: "${env:K}"}\nserver: {port: "${env:K}"}', {"K": "s3cret"})
    assert "s3cret" not in message
    with pytest.raises(ConfigError) as caught:
        load(path, {"K": "s3c\nret"})
    assert "s3c" not in str(caught.value)


def test_flags_win_over_environment_over_file(written: Written) -> None:
    """Precedence is flag, environment, file, default."""
    path = written("server: {port: 1, host: 127.0.0.2}\nscheduling: {queue_size: 5}")
    env = {"HEADRACE_PORT": "2", "HEADRACE_SCHEDULING__QUEUE_SIZE": "6", "HEADRACE_LOAD_BALANCER__WEIGHTS__SPEED": "0"}
    config = load(path, env, {"server.port": 3, "scheduling.policy": None})
    assert (config.server.port, config.server.host, config.scheduling.queue_size) == (3, "127.0.0.2", 6)
    assert config.load_balancer.weights.speed == 0
    assert load(path, env).server.port == 2


def test_lists_come_from_the_environment_too() -> None:
    """Containers can be configured without a file."""
    config = load(None, {"HEADRACE_INSTANCES": '[{id: e, engine: echo, models: ["m"]}]'})
    assert config.model_instances()[0].id == "e"


def test_mistakes_in_the_environment_are_named() -> None:
    """An unknown key from the environment is refused like one from the file."""
    with pytest.raises(ConfigError, match=r"scheduling\.queue_sise: unknown key; did you mean queue_size\?"):
        load(None, {"HEADRACE_SCHEDULING__QUEUE_SISE": "6"})
    with pytest.raises(ConfigError, match="policy holds a value, not keys"):
        load(None, {"HEADRACE_SCHEDULING__POLICY": "fair", "HEADRACE_SCHEDULING__POLICY__X": "1"})
    for value in ("2026-13-45", "[" * 5000, "&a [*a]"):
        with pytest.raises(ConfigError, match=r"^HEADRACE_SERVER__PORT: "):
            load(None, {"HEADRACE_SERVER__PORT": value})


def test_a_port_set_by_kubernetes_is_no_port() -> None:
    """A service called headrace makes Kubernetes set HEADRACE_PORT to a URL; it is not ours."""
    assert load(None, {"HEADRACE_PORT": "tcp://10.0.0.1:80", "HEADRACE_PORT_80_TCP": "x"}).server.port == 8080


# ------------------------------------------------------------------------------------------------ zero configuration


def test_nothing_named_gives_echo() -> None:
    """Without any engine in the environment the built-in one answers."""
    config, findings = discover_environment({})
    (instance,) = config.model_instances()
    assert (instance.engine, instance.models, instance.window_tokens) == (
        Engine.ECHO,
        (ServedModel(name="echo"),),
        None,
    )
    assert findings == ()


def test_one_engine_serves_everything() -> None:
    """A key alone makes its provider serve every model name."""
    config, findings = discover_environment({"OPENAI_API_KEY": "k"})
    (instance,) = config.model_instances()
    assert (instance.address, instance.tier, instance.models) == (
        "https://api.openai.com",
        Tier.REMOTE,
        (ServedModel(name="*"),),
    )
    assert config.secrets() == {"openai": "k"}
    assert [finding.variable for finding in findings] == ["OPENAI_API_KEY"]


def test_several_engines_share_the_names() -> None:
    """Beside other engines a provider gets its own names only; local engines come first."""
    env = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "a", "OLLAMA_HOST": "127.0.0.1"}
    config, _ = discover_environment(env)
    instances = {instance.id: instance for instance in config.model_instances()}
    assert list(instances) == ["ollama", "openai", "anthropic"]
    assert instances["openai"].models == tuple(ServedModel(name=name) for name in OPENAI_NAMES)
    assert instances["anthropic"].models == (ServedModel(name="claude-*"),)
    assert config.secrets() == {"openai": "k", "anthropic": "a"}


def test_another_base_url_is_obeyed() -> None:
    """OPENAI_BASE_URL moves the provider, as it does for the official SDKs."""
    config, _ = discover_environment({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})
    assert config.model_instances()[0].address == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("value", "address"),
    [
        ("gpu", "http://gpu:11434"),
        ("gpu:80", "http://gpu"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:5", "http://127.0.0.1:5"),
        ("https://gpu", "https://gpu"),
        ("http://gpu:7/", "http://gpu:7"),
        ("[::1]", "http://[::1]:11434"),
        ("[::1]:5", "http://[::1]:5"),
    ],
)
def test_a_host_becomes_an_address(value: str, address: str) -> None:
    """OLLAMA_HOST may be a host, a host with port, or a URL, as Ollama itself reads it."""
    assert address_of(value, 11434, "OLLAMA_HOST") == address


def test_an_unusable_address_names_its_variable() -> None:
    """The message says which variable to mend."""
    with pytest.raises(ConfigError, match="VLLM_URL: the address must begin with"):
        discover_environment({"VLLM_URL": "ftp://h"})
