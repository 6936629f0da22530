"""Files that commands write: what cannot be written is said before the work, in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.cli import Refused
from headrace.cli.written import refuse_undrawable, refuse_unwritable, writing


def test_what_can_be_written_is_not_refused(tmp_path: Path) -> None:
    """A new file, one that is there, and none at all."""
    there = tmp_path / "there.json"
    there.touch()
    refuse_unwritable(tmp_path / "new.json", there, None)
    refuse_undrawable(None)


def test_what_cannot_be_written_is_said_before_the_work(tmp_path: Path) -> None:
    """A directory, one that is missing, one that is locked, and a picture of an unknown kind."""
    with pytest.raises(Refused, match="it is a directory"):
        refuse_unwritable(tmp_path)
    with pytest.raises(Refused, match="there is no directory"):
        refuse_unwritable(None, tmp_path / "no" / "x.json")
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(Refused, match="permission denied"):
            refuse_unwritable(tmp_path / "x.json")
    with pytest.raises(Refused, match="ends in none of"):
        refuse_undrawable(tmp_path / "x.gif")


def test_what_fails_after_the_work_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A disk that fills up in between is told as well; what was written is told on standard error."""
    with (
        pytest.raises(Refused, match=r"cannot write .*x\.json \(No space left on device\)"),
        writing(tmp_path / "x.json"),
    ):
        raise OSError(28, "No space left on device")
    with writing(tmp_path / "y.json"):
        (tmp_path / "y.json").touch()
    assert capsys.readouterr().err == f"wrote {tmp_path / 'y.json'}\n"
