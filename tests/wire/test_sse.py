"""The event reader: every legal form, wherever it is cut, within its bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.sse import SseEvent, SseReader, event
from tests.wire.answers import cuts

LEGAL = (
    b"\xef\xbb\xbf: a comment\n\n"
    b'data: {"a":1}\n\n'
    b'data:{"a":2}\r\n\r\n'
    b"data:\n\n"
    b"event: error\rdata: x\r\r"
    b"data: two\ndata: lines\nid: 7\nretry: 5\n\n"
    b"data\n\n"
    b"data: last\n\n"
)
EVENTS = [
    SseEvent(b"", b'{"a":1}'),
    SseEvent(b"", b'{"a":2}'),
    SseEvent(b"error", b"x"),
    SseEvent(b"", b"two\nlines"),
    SseEvent(b"", b"last"),
]


def read(pieces: list[bytes]) -> list[SseEvent]:
    """The events in `pieces`."""
    reader = SseReader()
    return [found for piece in pieces for found in reader.feed(piece)]


def test_every_legal_form_is_read_however_it_is_cut() -> None:
    """LF, CRLF, lone CR, no blank after the colon, several data lines, a mark at the start: cut anywhere, the same."""
    for pieces in cuts(LEGAL):
        assert read(pieces) == EVENTS


@given(st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=8, max_size=8), st.data())
def test_line_ends_may_be_mixed_and_cut_at_random(ends: list[bytes], data: st.DataObject) -> None:
    """Any mixture of line ends, also where a CR and an LF meet, gives the same events in any pieces."""
    a, b, c, d, e, f, g, h = ends
    text = b"data: 1" + a + b + b":ping" + c + b"data: 2" + d + b"data: 3" + e + f + b"data: 4" + g + h
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:stop] for start, stop in zip([0, *places], [*places, len(text)], strict=True)]
    assert read(pieces) == read([text])


def test_a_cr_at_the_end_of_a_read_may_be_half_a_line_end() -> None:
    """`\\r` then `\\n` in two reads end one line, not two."""
    assert read([b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n"]) == [SseEvent(b"", b"a\nb")]


def test_the_open_event_can_be_asked_for_at_the_end() -> None:
    """An event whose blank line never came is not lost; without one there is nothing."""
    reader = SseReader()
    assert reader.feed(b"data: a\n\ndata: b") == [SseEvent(b"", b"a")]
    assert reader.finish() == SseEvent(b"", b"b")
    assert SseReader().finish() is None


@pytest.mark.parametrize("piece", [b"x" * 100, b"data: xxxx\n" * 10])
def test_an_endless_event_is_cut_off(piece: bytes) -> None:
    """A line without end, and an event of endless lines, stop at the bound and keep nothing."""
    reader = SseReader(limit=1000)
    for _ in range(100):
        assert reader.feed(piece) == []
    assert reader.overflowed
    assert reader.finish() is None


@pytest.mark.parametrize(
    ("fed", "idle"),
    [
        (b"data: a\n\n", True),
        (b"data: a\r\n\r", False),
        (b"data: a\r\n\r\n", True),
        (b"d", False),
        (b"data: a\n", False),
    ],
)
def test_idle_says_that_an_event_may_begin(fed: bytes, idle: bool) -> None:
    """Only between events, and not while an LF may still belong to the last line end."""
    reader = SseReader()
    reader.feed(fed)
    assert reader.idle is idle


def test_what_is_written_can_be_read() -> None:
    """Writing and reading are inverse for one-line payloads."""
    assert read([event(b'{"a":1}')]) == [SseEvent(b"", b'{"a":1}')]
