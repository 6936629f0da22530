"""Times in queries and bodies of the admin API."""

from __future__ import annotations

import time

from headrace.errors import error_for, invalid_request
from headrace.runtime.stores.moments import moment_of


def time_of(text: str | None, param: str) -> float | None:
    """The wall-clock time that is asked for. Raises HeadraceError (422) that names `param`."""
    if text is None:
        return None
    try:
        return moment_of(text, time.time())
    except ValueError as error:
        fault = invalid_request(f"{param}: {error}", param=param, code="invalid_field", status=422)
        raise error_for(fault) from None
