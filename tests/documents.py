"""What the documents hold for their readers to type: blocks of code, commands, requests."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
GATEWAY = "http://127.0.0.1:8080"
"""Where the documents' gateway is."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """Every code block of a language, with the document it stands in."""
    for document in DOCUMENTS:
        for found, text in _FENCE.findall(document.read_text(encoding="utf-8")):
            if found == language:
                yield document.name, text


def programs() -> Iterator[tuple[str, str, str]]:
    """Every program that uses the library: its document, its text, and what it prints, where that stands behind it."""
    for document in DOCUMENTS:
        found = _FENCE.findall(document.read_text(encoding="utf-8"))
        for (language, text), (after, printed) in pairwise([*found, ("", "")]):
            if language == "python" and "from headrace" in text:
                yield document.name, text, printed if after == "text" else ""


def commands() -> list[list[str]]:
    """Every command line in the documents, in words; what becomes of its output is left out."""
    lines = [line for _, text in blocks("sh") for line in text.replace("\\\n", " ").splitlines()]
    found = [shlex.split(line, comments=True) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return [words[: words.index(">")] if ">" in words else words for words in found]


@dataclass(frozen=True, slots=True)
class Request:
    """What a `curl` asks."""

    method: str
    url: str
    headers: dict[str, str]
    data: str | None

    @classmethod
    def of(cls, words: list[str]) -> Self:
        """The request of a command line that begins with `curl`. Raises KeyError for an option it does not know."""
        given: dict[str, list[str]] = {"-X": [], "-H": [], "-d": [], "url": []}
        rest = iter(words[1:])
        for word in rest:
            if word.startswith("-"):
                given[word].append(next(rest))
            else:
                given["url"].append(word)
        (url,), data = given["url"], next(iter(given["-d"]), None)
        method = next(iter(given["-X"]), "GET" if data is None else "POST")
        return cls(method, url, dict(header.split(": ", 1) for header in given["-H"]), data)
