"""Where log lines go: standard error, for people or for machines.

Everything becomes lines of one kind, also what libraries and the rooms without structlog say through `logging`. Stack
traces show places, never the values of variables: those hold prompts and keys.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Mapping
from functools import lru_cache
from time import gmtime, strftime, time_ns
from typing import TextIO, cast

import msgspec
import structlog


class _StandardError(io.TextIOBase):
    """Standard error as it is at the moment: loggers live longer than what it may be redirected to."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def configure(level: str, form: str, worker: int | None = None, *, for_good: bool = False) -> None:
    """Log to standard error from `level` on; `form` is console, json, or auto: console on a terminal.

    Libraries are heard from warnings on. `worker` is this process's number where there are several.
    `for_good`: nothing else will be configured in this process, so loggers need not ask again, which saves time.
    """
    errors = _StandardError()
    threshold = logging.getLevelNamesMapping()[level.upper()]
    first: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        _stamp,
        *(() if worker is None else (_numbered(worker),)),
    ]
    last = _rendering(console=form == "console" or (form == "auto" and sys.stderr.isatty()))
    structlog.configure(
        processors=[*first, *last],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", errors)),
        cache_logger_on_first_use=for_good,
    )
    handler = logging.StreamHandler(errors)
    without_record = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=first, processors=[without_record, *last])
    )
    logging.basicConfig(level=max(threshold, logging.WARNING), handlers=[handler], force=True)
    logging.getLogger("headrace").setLevel(threshold)


def _rendering(*, console: bool) -> list[structlog.typing.Processor]:
    if console:
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    return [structlog.processors.format_exc_info, _as_json]


def _stamp(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Add the time as ISO 8601 in UTC. Only the microseconds differ between most lines."""
    now = time_ns()
    event["timestamp"] = f"{_second(now // 1_000_000_000)}.{now // 1_000 % 1_000_000:06d}Z"
    return event


def _numbered(worker: int) -> structlog.typing.Processor:
    def number(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event.setdefault("worker", worker)
        return event

    return number


@lru_cache(maxsize=2)
def _second(now: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(now))


def _as_json(_logger: object, _method: str, event: Mapping[str, object]) -> str:
    """One line; a value that JSON does not know is shown as Python shows it."""
    return msgspec.json.encode(event, enc_hook=repr).decode()
