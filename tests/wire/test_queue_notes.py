"""Notes to those who wait: no client takes them for data, and who looks for them can read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.queue_notes import WAITING, late_headers, queued_note, read_queued_note
from headrace.wire.sse import SseReader


def test_a_note_is_a_comment_and_a_blank_line() -> None:
    """The very bytes that are documented."""
    assert queued_note(3, 4.2) == b": queued position=3 expected_start=4.2s\n\n"


@given(st.integers(1, 10**6), st.floats(0, 10**6))
def test_a_note_can_be_read(position: int, seconds: float) -> None:
    """Position and seconds come back, the seconds to a tenth."""
    note = queued_note(position, seconds)
    read = read_queued_note(note.removeprefix(b":"))
    assert read is not None
    assert read[0] == position
    assert abs(read[1] - seconds) <= 0.051


@pytest.mark.parametrize(
    "comment",
    [
        b"",
        b" waiting",
        b" ping",
        b" queued",
        b" queued position= expected_start=1s",
        b" queued position=-1 expected_start=1s",
        b" queued position=1 expected_start=infs",
        b" queued position=1 expected_start=1s and more",
        b" queued position=" + b"9" * 40 + b" expected_start=1s",
    ],
)
def test_other_comments_say_nothing(comment: bytes) -> None:
    """Keepalives of others, and what only looks like a note."""
    assert read_queued_note(comment) is None


def test_a_reader_of_events_sees_only_the_last_comment() -> None:
    """None of them is data, however the bytes are cut; `comment` holds the text of the latest."""
    stream = (
        queued_note(3, 4.2) + WAITING + late_headers([("x-headrace-instance", "a b"), ("x-headrace-attempts", "1")])
    )
    reader = SseReader()
    assert reader.comment == b""
    events = [event for byte in stream for event in reader.feed(bytes([byte]))]
    assert not events
    assert reader.comment == b" x-headrace-attempts: 1"
    assert [event.data for event in reader.feed(b"data: x\n\n")] == [b"x"]
    reader.feed(b": " + b"y" * 10_000 + b"\n")
    assert len(reader.comment) <= 256
