"""Recorded traffic: readers for three formats, and the cut that is shipped.

* azure: CSV with TIMESTAMP (wall clock, 100 ns digits), ContextTokens, GeneratedTokens. Nobody's name is in it.
* mooncake: JSON Lines with timestamp (ms), input_length, output_length, hash_ids (ids of 512-token prefix blocks).
* headrace: JSON Lines written by `headrace serve --journal`, one object per request: at (s), tenant, user, class,
  session, prompt_tokens, output_tokens, took (s, to its end); both lengths are required. Lines with `headrace_journal`
  begin a start of the gateway, at the wall time `started`.

A name that ends in `.gz` is unpacked. `shipped:NAME` means a file that comes with headrace.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, TextIO

import msgspec

from headrace.errors import ConfigError
from headrace.model import ServiceClass

MOONCAKE_BLOCK = 512
"""Tokens of one hashed block in Mooncake's traces."""
SHIPPED = "shipped:"


class Row(NamedTuple):
    """One recorded request."""

    at: float
    """Seconds since the first one."""
    prompt: int
    output: int
    chain: tuple[int, ...] = ()
    user: str = ""
    tenant: str = "default"
    service_class: ServiceClass = ServiceClass.NORMAL
    session: str = ""
    took: float = 0.0
    """Seconds until it had ended; 0 where the trace does not say."""


def read(name: str, form: str, folder: Path, seconds: float | None = None) -> list[Row]:
    """The requests of a trace's first `seconds`, in order of arrival.

    Args:
        name: a file, relative to `folder`, or `shipped:NAME`.
        form: azure, mooncake or headrace.
        folder: where relative names begin.
        seconds: None: all of it.

    Raises:
        ConfigError: no such file or format, or a line that cannot be read (its number is in the message).
    """
    reader = READERS.get(form)
    if reader is None:
        raise ConfigError(f"{name}: '{form}' is no format of traces; there are {', '.join(READERS)}")
    try:
        with _opened(name, folder) as file:
            rows = _numbered(reader(file), name)
            found = list(rows if seconds is None else takewhile(lambda row: row.at <= seconds, rows))
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror or error}") from None
    if not found:
        raise ConfigError(f"{name}: there is no request in it")
    return sorted(found)


@contextmanager
def _opened(name: str, folder: Path) -> Iterator[TextIO]:
    if name.startswith(SHIPPED):
        place = resources.files("headrace.sim") / "traces" / name.removeprefix(SHIPPED)
        with resources.as_file(place) as path, _text(path) as file:
            yield file
    else:
        with _text(folder / name) as file:
            yield file


def _text(path: Path) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _numbered(rows: Iterator[Row], name: str) -> Iterator[Row]:
    """Count from the first arrival, and say which line is broken."""
    first: float | None = None
    number = 0
    while True:
        number += 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{name}: request {number} cannot be read: {error!r}") from None
        if row.prompt < 1 or row.output < 0:
            raise ConfigError(f"{name}: request {number} has {row.prompt} prompt and {row.output} output tokens")
        first = row.at if first is None else first
        yield row._replace(at=row.at - first, output=max(1, row.output))


def _azure(file: TextIO) -> Iterator[Row]:
    for line in csv.DictReader(file):
        stamp = datetime.fromisoformat(line["TIMESTAMP"][:26])
        seconds = (stamp - datetime.min).total_seconds()  # noqa: DTZ901 - only differences matter
        yield Row(seconds, int(line["ContextTokens"]), int(line["GeneratedTokens"]))


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def _mooncake(file: TextIO) -> Iterator[Row]:
    decode = msgspec.json.Decoder(_MooncakeLine).decode
    for text in filter(str.strip, file):
        line = decode(text)
        yield Row(line.timestamp / 1000, line.input_length, line.output_length, line.hash_ids)


class _JournalLine(msgspec.Struct, rename={"service_class": "class"}):
    at: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = "default"
    user: str = "anonymous"
    service_class: ServiceClass = ServiceClass.NORMAL
    session: str = ""
    output_cap: int | None = None
    took: float | None = None
    cache: str = "miss"
    ending: str = "answered"


class _JournalHeader(msgspec.Struct):
    headrace_journal: int
    started: float


_NO_DEMAND = frozenset({"rejected", "model_not_found"})
"""Endings of requests that no gateway would have sent to an engine, or no engine would have answered."""


def _journal(file: TextIO) -> Iterator[Row]:
    """In order of arrival (a line is written when its request ends), over all starts of the gateway.

    Left out is what cost no engine anything. Where a request was not answered, its output is what the user's answers
    had on average, else its cap, else the average of all.
    """
    lines = sorted(_journal_lines(file), key=lambda line: line.at)
    averages = _average_outputs(lines)
    for line in lines:
        output = line.output_tokens
        if line.ending != "answered":
            output = averages.get((line.tenant, line.user)) or line.output_cap or averages.get(None) or 1
        who = (line.user, line.tenant, line.service_class, line.session)
        yield Row(line.at, max(1, line.prompt_tokens), output, (), *who, line.took or 0.0)


def _average_outputs(lines: Iterable[_JournalLine]) -> dict[tuple[str, str] | None, int]:
    """Of answered requests, by tenant and user; None: of all."""
    lengths: dict[tuple[str, str] | None, list[int]] = {}
    for line in lines:
        if line.ending == "answered":
            for whose in (None, (line.tenant, line.user)):
                lengths.setdefault(whose, []).append(line.output_tokens)
    return {whose: sum(found) // len(found) for whose, found in lengths.items()}


def _journal_lines(file: TextIO) -> Iterator[_JournalLine]:
    """The requests that cost an engine something, `at` counted from the first start."""
    decode, header = msgspec.json.Decoder(_JournalLine).decode, msgspec.json.Decoder(_JournalHeader).decode
    first: float | None = None
    shift = 0.0
    for number, text in enumerate(file, start=1):
        try:
            if '"headrace_journal"' in text:
                started = header(text).started
                first = started if first is None else first
                shift = started - first
            elif text.strip():
                line = decode(text)
                if line.cache == "miss" and line.ending not in _NO_DEMAND:
                    line.at += shift
                    yield line
        except msgspec.MsgspecError as error:
            raise ValueError(f"line {number}: {error}") from None


READERS: Mapping[str, Callable[[TextIO], Iterator[Row]]] = {
    "azure": _azure,
    "mooncake": _mooncake,
    "headrace": _journal,
}
"""Format -> reader."""
