"""Configuration files that tests write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.config import load
from headrace.errors import ConfigError

Written = Callable[[str], Path]


def refusal(written: Written, text: str, env: dict[str, str] | None = None) -> str:
    """The message with which a file is refused, without the file's name."""
    path = written(text)
    with pytest.raises(ConfigError) as caught:
        load(path, env or {})
    return str(caught.value).removeprefix(f"{path}: ")
