"""`headrace version`."""

from __future__ import annotations

import platform

from headrace import __version__


def version() -> None:
    """Print the version of headrace and of the Python it runs on."""
    print(f"headrace {number()} (Python {platform.python_version()})")


def number() -> str:
    """The version of headrace."""
    return __version__
