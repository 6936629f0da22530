"""Recorded traffic is read as it was written, and a broken file is named with the place."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.sim.trace import read


def test_the_shipped_trace_is_what_its_notice_says() -> None:
    """2,598 requests in 900 s, in order, of code-like shape: long prompts, short answers."""
    rows = read("shipped:azure-code-900s.csv.gz", "azure", Path())
    assert len(rows) == 2598
    assert rows[0].at == 0.0
    assert rows[-1].at <= 900.0
    assert sorted(row.prompt for row in rows)[1299] > 1000
    assert sorted(row.output for row in rows)[1299] < 30


def test_mooncake_s_blocks_are_kept(tmp_path: Path) -> None:
    """Times come in milliseconds, hashed blocks as they are; a packed file is unpacked."""
    line = '{"timestamp": 1500, "input_length": 1024, "output_length": 7, "hash_ids": [3, 4]}\n'
    with gzip.open(tmp_path / "m.jsonl.gz", "wt") as file:
        file.write('{"timestamp": 500, "input_length": 10, "output_length": 1, "hash_ids": []}\n\n' + line)
    first, second = read("m.jsonl.gz", "mooncake", tmp_path)
    assert (first.at, second.at) == (0.0, 1.0)
    assert second.chain == (3, 4)


def test_only_the_beginning_is_read_where_that_is_asked(tmp_path: Path) -> None:
    """Seconds count from the first request."""
    stamps = "".join(f"2023-11-16 18:17:{second:02}.0000000,10,{second}\n" for second in range(3, 20))
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + stamps)
    assert [row.output for row in read("t.csv", "azure", tmp_path, 2.0)] == [3, 4, 5]


@pytest.mark.parametrize(
    ("text", "form", "message"),
    [
        ("", "azure", "no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,1\nyesterday,5,1\n", "azure", "request 2"),
        ("A,B\n1,2\n", "azure", "request 1"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,-5,1\n", "azure", "-5 prompt"),
        ('{"timestamp": 1, "input_length": "many", "output_length": 1}\n', "mooncake", "request 1"),
        ("{}", "csv", "no format of traces; there are azure"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, form: str, message: str, tmp_path: Path) -> None:
    """The file, and which request of it, or what formats there are."""
    (tmp_path / "bad").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read("bad", form, tmp_path)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    """In one sentence, with its name."""
    with pytest.raises(ConfigError, match=r"gone\.csv: No such file"):
        read("gone.csv", "azure", tmp_path)
