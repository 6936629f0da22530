"""What the documents say can be done: commands exist, options exist, links lead somewhere, examples run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from headrace.cli import COMMANDS, build
from headrace.config import load
from headrace.config.reading import parsed, validated
from headrace.runtime.journal import Line
from tests.documents import DOCUMENTS, ROOT, blocks, commands, programs

_LINK = re.compile(r"\]\(([^)#\s]*)#?([^)\s]*)\)")


@cache
def targets() -> frozenset[str]:
    """What `make` can make."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^([a-z-]+):", text, re.MULTILINE))


@cache
def command_line(name: str) -> TyperGroup:
    """`headrace`, as far as one of its commands."""
    app = get_command(build([name]))
    assert isinstance(app, TyperGroup)
    return app


@pytest.mark.parametrize("words", [words for words in commands() if words[0] != "curl"], ids=" ".join)
def test_commands_exist(words: list[str]) -> None:
    """Each command line names a target, or a command that takes just these words; files that it reads are there."""
    program, *rest = words
    if program == "make":
        assert {word for word in rest if "=" not in word} <= targets()
        return
    assert program == ".venv/bin/headrace"
    name, *given = rest
    assert name in COMMANDS
    called = command_line(name).commands[name]
    if isinstance(called, TyperGroup):
        called, given = called.commands[given[0]], given[1:]
    called.make_context(name, given)
    assert all((ROOT / word).is_file() for word in rest if word.endswith(".yaml"))


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


@pytest.mark.parametrize(("document", "text", "printed"), list(programs()))
def test_the_library_s_examples_run_as_written(document: str, text: str, printed: str) -> None:
    """Each prints what stands behind it; the few lines that every reader tries first, what they ask."""
    result = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == (printed.strip() or "Hello, pipeline!"), document


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """Each link to a file of this repository finds it, and each one into a document the heading that it names."""
    for link, heading in _LINK.findall(document.read_text(encoding="utf-8")):
        if "://" not in link:
            target = document.parent / link if link else document
            assert target.exists(), link
            assert not heading or heading in headings(target), heading


@cache
def headings(document: Path) -> frozenset[str]:
    """What a link into a document may name: its headings in lower case, with hyphens for blanks."""
    found = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found)


@pytest.mark.parametrize("room", ["core", "wire", "runtime", "runtime/stores", "server"])
def test_the_rooms_are_described_file_by_file(room: str) -> None:
    """Where contributors look for their way, each file of the rooms that answer requests has its place."""
    named = re.findall(r"[a-z_0-9*]+\.py", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    files = [path.name for path in (ROOT / "src" / "headrace" / room).glob("*.py") if path.name != "__init__.py"]
    assert files
    assert [file for file in files if not any(fnmatch(file, name) for name in named)] == []


def test_every_file_that_is_named_is_there() -> None:
    """No document sends its readers to a module that has another name by now."""
    files = {path.name for room in ("src", "tests", "benchmarks", "examples") for path in (ROOT / room).rglob("*.py")}
    texts = {document.name: document.read_text(encoding="utf-8") for document in DOCUMENTS}
    named = {(name, file) for name, text in texts.items() for file in re.findall(r"\b([a-z_0-9]+\.py)`", text)}
    assert named
    assert [(name, file) for name, file in sorted(named) if file not in files] == []


def test_errors_are_documented() -> None:
    """Every code that headrace gives is in the table of errors, in a row with its status."""
    source = (ROOT / "src" / "headrace" / "errors.py").read_text(encoding="utf-8")
    given = set(re.findall(r'Fault\(\s*(\d+),\s*"\w+",\s*"(\w+)"', source))
    rows = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8").splitlines()
    told = {(row.split()[1], code) for row in rows if row.startswith("| ") for code in re.findall(r"`(\w+)`", row)}
    assert given
    assert given - told == set()


def test_the_journal_s_keys_are_documented() -> None:
    """Whoever reads a journal finds each key of a line in the table."""
    text = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    table = text.partition("\n## Journal\n")[2].partition("\n## ")[0]
    assert [key for key in Line.__struct_encode_fields__ if f"`{key}`" not in table] == []


def test_the_headers_are_documented() -> None:
    """Every header of headrace's own that a caller sends or gets is in the document for callers."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src" / "headrace" / "server").rglob("*.py"))
    names = {name for text in sources for name in re.findall(r"[\"'](x-headrace-[a-z-]+)", text)}
    told = (ROOT / "docs" / "use.md").read_text(encoding="utf-8")
    assert len(names) > 5
    assert [name for name in sorted(names) if f"`{name}`" not in told] == []
