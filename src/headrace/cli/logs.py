"""Where log lines go: standard error, for people or for machines."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(level: str, form: str) -> None:
    """Log to standard error from `level` on; `form` is console, json, or auto: console on a terminal."""
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    last: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if console else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
