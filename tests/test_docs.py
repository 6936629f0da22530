"""What the documents say can be done: commands exist, options exist, links lead somewhere, examples run."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from headrace.cli import COMMANDS, main
from headrace.config import load
from headrace.config.reading import parsed, validated

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)")
_ROUTES = (
    "/v1/chat/completions",
    "/v1/models",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/queue/me",
    "/v1/queue/my-request-id",
    "/admin/instances",
    "/admin/instances/gpu-2",
    "/admin/instances/gpu-2/drain",
    "/admin/circuit-breakers/gpu-1/trip",
    "/admin/circuit-breakers/gpu-1/reset",
    "/admin/status",
    "/admin/balancer/debug",
    "/admin/metrics/summary",
    "/admin/scaling/evaluate",
    "/admin/dlq/replay",
)


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """Every code block of a language, with the document it stands in."""
    for document in DOCUMENTS:
        for found, text in _FENCE.findall(document.read_text(encoding="utf-8")):
            if found == language:
                yield document.name, text


def commands() -> list[list[str]]:
    """Every command line in the documents, in words."""
    lines = [line for _, text in blocks("sh") for line in text.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.strip() and not line.lstrip().startswith("#")]


@cache
def targets() -> frozenset[str]:
    """What `make` can make."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^([a-z-]+):", text, re.MULTILINE))


@cache
def help_of(*words: str) -> str:
    """The help text of a command, as the command line prints it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as caught:
        main([*words, "--help"])
    assert caught.value.code in (0, None)
    return out.getvalue()


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_exist(words: list[str]) -> None:
    """Each command line names a target, a command with such options, or a route that there is."""
    program, *rest = words
    if program == "make":
        assert {word for word in rest if "=" not in word} <= targets()
    elif program == "curl":
        url = next(word for word in rest if word.startswith("http"))
        path = url.removeprefix("http://127.0.0.1:8080").partition("?")[0]
        assert path in _ROUTES
    else:
        assert program == ".venv/bin/headrace"
        assert rest[0] in COMMANDS
        name = rest[:2] if rest[0] in ("dlq", "instances") else rest[:1]
        text = help_of(*name)
        assert all(option in text for option in rest if option.startswith("--"))
        files = [ROOT / word for word in rest if word.endswith(".yaml")]
        assert all(file.is_file() for file in files)


@pytest.mark.parametrize(("document", "text"), list(blocks("yaml")))
def test_configurations_load(document: str, text: str) -> None:
    """Each piece of configuration in the documents is one that headrace accepts."""
    assert document
    validated(parsed(text.encode(), document), document)


def test_the_readme_s_configuration_can_be_started(tmp_path: Path) -> None:
    """With its key in the environment, the first example is a whole configuration without warnings."""
    path = tmp_path / "c.yaml"
    path.write_text(next(text for document, text in blocks("yaml") if document == "README.md"), encoding="utf-8")
    config = load(path, {"CLOUD_KEY": "k"})
    assert len(config.model_instances()) == 2
    assert config.warnings() == ()


@pytest.mark.parametrize(("document", "text"), list(blocks("python")))
def test_python_is_python(document: str, text: str) -> None:
    """Each piece of Python parses."""
    assert ast.parse(text, document).body


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """Each link to a file of this repository finds it."""
    links = [link for link in _LINK.findall(document.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("room", ["core", "wire", "runtime", "runtime/stores", "server"])
def test_the_rooms_are_described_file_by_file(room: str) -> None:
    """Where contributors look for their way, each file of the rooms that answer requests has its place."""
    named = re.findall(r"[a-z_0-9*]+\.py", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    files = [path.name for path in (ROOT / "src" / "headrace" / room).glob("*.py") if path.name != "__init__.py"]
    assert files
    assert [file for file in files if not any(fnmatch(file, name) for name in named)] == []


def test_errors_are_documented() -> None:
    """Every code that headrace gives is in the table of errors."""
    source = (ROOT / "src" / "headrace" / "errors.py").read_text(encoding="utf-8")
    codes = set(re.findall(r'Fault\(\s*\d+,\s*"\w+",\s*"(\w+)"', source))
    table = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert codes
    assert {code for code in codes if f"`{code}`" not in table} == set()
