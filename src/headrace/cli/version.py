"""`headrace version`."""

from __future__ import annotations

import platform
from importlib.util import find_spec

from headrace import __version__


def version() -> None:
    """Print the version of headrace, of the Python it runs on, and whether it is the compiled form."""
    scheduler = find_spec("headrace.core.scheduler")
    compiled = scheduler is not None and not str(scheduler.origin).endswith(".py")
    print(f"headrace {__version__} ({'compiled, ' if compiled else ''}Python {platform.python_version()})")
