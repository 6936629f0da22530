"""Times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LATEST = 253_402_300_799.0
HOW = "15m, 2h, 7d (ago), a Unix time, or a date as 2026-11-30T12:00"


def moment_of(text: str, now: float) -> float:
    """The wall-clock time meant by `90s`, `15m`, `2h`, `7d` (before `now`), by Unix seconds or by an ISO date (UTC).

    Raises ValueError with a sentence.
    """
    number, unit = text[:-1], _SECONDS.get(text[-1:])
    if unit is not None and number.isascii() and number.isdecimal() and len(number) <= 6:
        return now - int(number) * unit
    try:
        seconds = float(text)
    except ValueError:
        seconds = _of_date(text)
    if not 0 <= seconds <= _LATEST:
        raise ValueError(f"'{text[:40]}' is no time; say {HOW}")
    return seconds


def _of_date(text: str) -> float:
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return -1.0
