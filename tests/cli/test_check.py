"""`headrace check`: validates, and shows what a configuration means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.check import check
from headrace.errors import ConfigError

FILE = """
scheduling: {policy: fifo}
instances:
  - {id: gpu-1, address: "http://127.0.0.1:8001", engine: vllm, models: [qwen, alias=qwen]}
  - {id: cloud, address: "https://api.example.com", tier: remote, api_key_env: CLOUD_KEY}
limits: {per_user: {requests_per_minute: 60}}
"""


def test_it_shows_engines_and_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every engine and every effective setting is shown; what differs from the default is marked, no key is."""
    path = tmp_path / "c.yaml"
    path.write_text(FILE)
    monkeypatch.setenv("CLOUD_KEY", "s3cret")
    check(path)
    out = capsys.readouterr().out
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "gpu-1 vllm http://127.0.0.1:8001 qwen, alias=qwen local 10 3072 none" in rows
    assert "cloud openai https://api.example.com * remote 10 none CLOUD_KEY" in rows
    assert "scheduling.policy fifo default fair" in rows
    assert "limits.per_user requests_per_minute 60, burst 1 default none" in rows
    assert "s3cret" not in out
    assert rows[-1].endswith("c.yaml: usable")


def test_it_shows_what_has_keys_of_the_readers_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, lists of models, price lists and sections that need not be there."""
    path = tmp_path / "c.yaml"
    path.write_text(
        "instances: [{engine: echo}]\n"
        "models: {one: a, two: [a, b], mix: {a: 3, b: 1}}\n"
        "fallbacks: {a: {to: [b], on: [exhausted]}}\n"
        "routing: {spill_after_seconds: {normal: 5}, hedge: {after: 2}}\n"
        "scheduling: {prices: {a: {prompt: 2.5}}}\n",
        encoding="utf-8",
    )
    check(path)
    shown = " ".join(capsys.readouterr().out.split())
    for text in (
        "one a, two (a, b), mix (a 3, b 1)",
        "a (to (b), on (exhausted))",
        "normal 5",
        "after 2, budget 0.05",
        "a (prompt 2.5, output 0)",
    ):
        assert text in shown


def test_a_missing_key_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose key is not in the environment cannot be used."""
    path = tmp_path / "c.yaml"
    path.write_text(FILE)
    monkeypatch.delenv("CLOUD_KEY", raising=False)
    with pytest.raises(ConfigError, match="CLOUD_KEY is not set"):
        check(path)


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """`--schema` prints the JSON schema, for editors."""
    check(schema=True)
    schema = json.loads(capsys.readouterr().out)
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) >= {"server", "instances", "dedup"}


def test_the_file_may_come_from_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """HEADRACE_CONFIG names the file where no argument does."""
    path = tmp_path / "c.yaml"
    path.write_text("instances: [{id: here, engine: echo}]")
    monkeypatch.setenv("HEADRACE_CONFIG", str(path))
    check()
    assert "here" in capsys.readouterr().out
