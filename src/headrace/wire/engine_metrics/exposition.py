"""Prometheus text (version 0.0.4) and OpenMetrics 1.0, as far as a few wanted series go.

A page has a thousand lines and a dozen of them matter, so nothing is built for the others: each wanted name is looked
for at the beginnings of lines. `# HELP`, `# TYPE`, `# EOF`, `_created` series, timestamps, exemplars and carriage
returns need no treatment of their own that way. Sources: the text format's description in Prometheus's documentation,
and the OpenMetrics specification.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

LARGEST_PAGE = 2 * 1024 * 1024
"""Bytes of a page that are looked at; a larger one says nothing. A vLLM with one engine has about 100 KiB."""
MOST_SERIES = 512
"""Series of one name; with more the name says nothing."""

Labels = tuple[tuple[str, str], ...]
"""A series' labels, sorted by name."""

_PAIR = rb'%s[a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"%s(?:[^"\\\r\n]|\\.)*+)"[ \t]*+,?[ \t]*+'
_LABEL = re.compile(_PAIR % (b"(", b"("))
_NUMBER = rb"[+-]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"
_REST = re.compile(
    rb"[ \t]*+(?:\{[ \t]*+((?:" + _PAIR % (b"(?:", b"(?:") + rb")*+)\})?[ \t]*+"  # labels
    rb"(" + _NUMBER + rb"|[+-]?[Ii]nf(?:inity)?|[Nn]a[Nn])"  # value
    rb"(?:[ \t]++" + _NUMBER + rb")?[ \t]*+(?:#[^\n]*+)?\r?(?=\n|\Z)"  # time, exemplar
)
_ESCAPED = re.compile(rb"\\(.)")
_MEANT = {b"n": b"\n", b"\\": b"\\", b'"': b'"'}


class Series(NamedTuple):
    """One line. A value of None was not a finite number, or the line could not be read (and has no labels then)."""

    labels: Labels
    value: float | None


_GARBLED = Series((), None)


class Page:
    """One answer of an engine; anything at all may be in it."""

    def __init__(self, body: bytes) -> None:
        self._text = b"\n" + body if len(body) <= LARGEST_PAGE else b""

    def series(self, name: str) -> tuple[Series, ...]:
        """Every series called exactly `name`, each labels once; empty where there is none."""
        text, wanted = self._text, b"\n" + name.encode()
        found: dict[Labels, Series] = {}
        at = text.find(wanted)
        while at >= 0:
            end = at + len(wanted)
            if text[end : end + 1] in (b"{", b" ", b"\t"):
                one = _read(text, end)
                # The same labels twice are no exposition: which of the two counts is unknown.
                found[one.labels] = one if one.labels not in found else Series(one.labels, None)
                if len(found) > MOST_SERIES:
                    return (_GARBLED,)
            at = text.find(wanted, end)
        return tuple(found.values())


def _read(text: bytes, at: int) -> Series:
    """The series whose name ends at `at`."""
    match = _REST.match(text, at)
    if match is None:
        return _GARBLED
    value = float(match[2])
    return Series(_labels(match[1] or b""), value if math.isfinite(value) else None)


def _labels(text: bytes) -> Labels:
    return tuple(sorted((name.decode(), _unescaped(value)) for name, value in _LABEL.findall(text)))


def _unescaped(value: bytes) -> str:
    if b"\\" in value:
        value = _ESCAPED.sub(lambda match: _MEANT.get(match[1], match[0]), value)
    return value.decode("utf-8", "backslashreplace")
