"""`headrace version`."""

from __future__ import annotations

import platform

from headrace import __version__


def version() -> None:
    """Print the version of headrace and of the Python it runs on."""
    print(f"headrace {__version__} (Python {platform.python_version()})")
