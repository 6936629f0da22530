"""The sections `admin` and `scaling`: one key, never shown, and thresholds that make sense."""

from __future__ import annotations

import pytest
from rich.console import Console

from headrace.cli.serve import server_settings
from headrace.cli.tables import settings_table
from headrace.config import Config, load
from headrace.config.administration import AdminSection, ScalingSection, may_hold_a_key
from headrace.core.scaling import ScalingSettings
from headrace.errors import ConfigError
from tests.written import Written

KEY = "k-0123456789abcdef"


def test_without_a_key_there_is_none(written: Written) -> None:
    """The default is the one that lets this machine in only."""
    config = load(written(""), {})
    assert config.admin_key() is None
    assert server_settings(config).admin.key is None


@pytest.mark.parametrize(
    "text", ["admin: {api_key_env: THE_KEY}", 'admin: {api_key: "${env:THE_KEY}"}', f"admin: {{api_key: {KEY}}}"]
)
def test_the_key_comes_from_the_file_or_a_variable(written: Written, text: str) -> None:
    """Each way leads to the same key, and nowhere is it printed."""
    config = load(written(text), {"THE_KEY": KEY})
    assert config.admin_key() == server_settings(config).admin.key == KEY
    console = Console(record=True, width=200, quiet=True)
    console.print(settings_table(config))
    shown = f"{config!r} {config} {server_settings(config)!r} {console.export_text()} {config.model_dump()}"
    assert KEY not in shown
    assert KEY not in config.model_dump_json()
    assert config.warnings() == ()


@pytest.mark.parametrize(
    ("text", "env", "words"),
    [
        ("admin: {api_key_env: THE_KEY}", {}, ("admin.api_key_env", "THE_KEY", "not set")),
        ("admin: {api_key_env: THE_KEY}", {"THE_KEY": " "}, ("THE_KEY", "not set")),
        ("admin: {api_key_env: THE_KEY}", {"THE_KEY": "caf\u00e9"}, ("THE_KEY", "no header")),
        ("admin: {api_key: caf\u00e9}", {}, ("admin.api_key", "no header")),
        ("admin: {api_key: ''}", {}, ("admin.api_key",)),
        ("admin: {api_key: a, api_key_env: B}", {"B": "b"}, ("two ways",)),
        ("admin: {allow_addresses: [10.0.0.0/99]}", {}, ("admin.allow_addresses[0]", "10.0.0.0/8")),
        ("admin: {key_variables: ['A B']}", {}, ("admin.key_variables[0]",)),
        ("admin: {keys: a}", {}, ("admin.keys", "api_key")),
        ("scaling: {min_instances: 5, max_instances: 4}", {}, ("min_instances", "max_instances")),
        ("scaling: {idle: 0.7, busy: 0.7}", {}, ("idle", "busy")),
        ("scaling: {window_seconds: 0}", {}, ("scaling.window_seconds",)),
    ],
)
def test_what_cannot_be_meant_is_refused(
    written: Written, text: str, env: dict[str, str], words: tuple[str, ...]
) -> None:
    """The message names the key of the file and what is wrong, and holds no secret."""
    with pytest.raises(ConfigError) as refused:
        load(written(text), env)
    assert all(word in str(refused.value) for word in words), str(refused.value)
    assert "caf" not in str(refused.value)


def test_a_short_key_is_warned_of(written: Written) -> None:
    """It works, and somebody says that it can be guessed."""
    (warning,) = load(written("admin: {api_key: short}"), {}).warnings()
    assert "16 characters" in warning
    assert "short" not in warning


def test_variables_for_keys_are_those_that_were_named() -> None:
    """By pattern, and never headrace's own, which hold no engine's key."""
    assert may_hold_a_key("OPENAI_API_KEY", ("*_API_KEY",))
    assert not may_hold_a_key("AWS_SECRET_ACCESS_KEY", ("*_API_KEY",))
    assert not may_hold_a_key("HEADRACE_API_KEY", ("*",))
    env = {"OPENAI_API_KEY": "k-1", "EMPTY_API_KEY": "", "PATH": "/bin", "HEADRACE_ADMIN_API_KEY": KEY}
    assert AdminSection().variables(env) == {"OPENAI_API_KEY": "k-1"}
    config = Config().with_keys(env)
    assert (config.key_in("OPENAI_API_KEY"), config.key_in("PATH")) == ("k-1", None)


def test_defaults_are_those_of_the_judgement() -> None:
    """The file's defaults and the code's own cannot drift apart."""
    assert ScalingSection().settings() == ScalingSettings()
