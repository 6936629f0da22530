"""`headrace version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def version() -> None:
    """Print the version of headrace and of the Python it runs on."""
    print(f"headrace {number()} (Python {platform.python_version()})")


def number() -> str:
    """The version of headrace that is installed here."""
    try:
        return installed("headrace")
    except PackageNotFoundError:
        return "(not installed)"
