"""The command line as a whole: what it prints, how it refuses, how quickly it is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import COMMANDS, main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command in this process."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    captured = capsys.readouterr()
    code = caught.value.code
    assert code is None or isinstance(code, int)
    return code or 0, captured.out, captured.err


@pytest.mark.parametrize("asked", ["version", "--version", "-V"])
def test_version_is_printed(capsys: pytest.CaptureFixture[str], asked: str) -> None:
    """`headrace version`, and as people type it: which headrace runs on which Python."""
    code, out, _ = run(capsys, asked)
    assert code == 0
    assert out.startswith("headrace ")


def test_version_imports_nothing_heavy() -> None:
    """A command that needs no server, client or database does not load them: it answers at once."""
    code = (
        "import sys; from headrace.cli import main\n"
        "try: main(['version'])\n"
        "except SystemExit: pass\n"
        "heavy = {'aiohttp', 'uvicorn', 'starlette', 'sqlalchemy', 'asyncio', 'yaml'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_wrong_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown command is a mistake in the asking: exit 2, told on standard error."""
    code, _, err = run(capsys, "swerve")
    assert code == 2
    assert "swerve" in err


def test_a_wrong_configuration_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A configuration that cannot be used is exit 2 with one line, not a traceback."""
    path = tmp_path / "c.yaml"
    path.write_text("scheduling: {polcy: fair}")
    code, out, err = run(capsys, "check", str(path))
    assert (code, out) == (2, "")
    assert err == f"headrace: {path}: scheduling.polcy: unknown key; did you mean policy?\n"


def test_serving_the_world_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without keys only this machine is served, unless asked for by name."""
    monkeypatch.delenv("HEADRACE_CONFIG", raising=False)
    code, _, err = run(capsys, "serve", "--host", "0.0.0.0", "--engine", "echo")
    assert code == 2
    assert "--insecure" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Each command has a help text."""
    code, out, _ = run(capsys, name, "--help")
    assert code == 0
    assert "Usage: headrace" in out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`headrace --help` shows all there is."""
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(name in out for name in COMMANDS)
