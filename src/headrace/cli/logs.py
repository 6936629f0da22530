"""Where log lines go: standard error, for people or for machines.

Everything becomes lines of one kind, also what libraries and the rooms without structlog say through `logging`. Stack
traces show places, never the values of variables: those hold prompts and keys.

Most lines by far tell of a request that is over. For machines these are made in one step, and those of one turn of the
loop are one write.
"""

from __future__ import annotations

import asyncio
import io
import logging
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from time import gmtime, strftime, time_ns
from typing import TextIO, cast

import msgspec
import structlog


class _StandardError(io.TextIOBase):
    """Standard error as it is at the moment: loggers live longer than what it may be redirected to."""

    def __init__(self) -> None:
        self._news: list[str] = []
        """Lines that leave at the end of this turn of the loop."""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """At once, behind what waits."""
        with self._lock:
            self._write_news()
            return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def write_soon(self, line: str) -> None:
        """With the other lines of this turn of the loop; at once where no loop runs."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.write(line + "\n")
            return
        with self._lock:
            if not self._news:
                loop.call_soon(self.write, "")
            self._news.append(line)

    def _write_news(self) -> None:
        if self._news:
            self._news.append("")
            sys.stderr.write("\n".join(self._news))
            self._news.clear()


def configure(level: str, form: str, worker: int | None = None, *, for_good: bool = False) -> None:
    """Log to standard error from `level` on; `form` is console, json, or auto: console on a terminal.

    Libraries are heard from warnings on. `worker` is this process's number where there are several.
    `for_good`: nothing else will be configured in this process, so loggers need not ask again, which saves time.
    """
    errors = _StandardError()
    threshold = logging.getLevelNamesMapping()[level.upper()]
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    first: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        _stamp,
        *(() if worker is None else (_numbered(worker),)),
    ]
    last = _rendering(console=console)
    logger = structlog.make_filtering_bound_logger(threshold)
    if not console and threshold <= logging.INFO:
        logger = type("JsonLogger", (logger,), {"info": _telling(errors, worker)})
    structlog.configure(
        processors=[*first, *last],
        wrapper_class=logger,
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


def _telling(errors: _StandardError, worker: int | None) -> Callable[..., None]:
    """The method `info` of loggers whose lines are for machines: what the processors do, in one step.

    It takes no values for an event's text and no exception, which no news comes with.
    """

    def info(logger: structlog.typing.BindableLogger, event: str, **fields: object) -> None:
        if logger._context:
            fields = {**logger._context, **fields}
        fields["event"] = event
        fields["level"] = "info"
        fields["timestamp"] = _now()
        if worker is not None:
            fields.setdefault("worker", worker)
        errors.write_soon(_encode(fields).decode())

    return info


def _stamp(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    event["timestamp"] = _now()
    return event


def _now() -> str:
    """The time as ISO 8601 in UTC. Only the microseconds differ between most lines."""
    now = time_ns()
    return f"{_second(now // 1_000_000_000)}.{now // 1_000 % 1_000_000:06d}Z"


def _numbered(worker: int) -> structlog.typing.Processor:
    def number(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event.setdefault("worker", worker)
        return event

    return number


@lru_cache(maxsize=2)
def _second(now: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(now))


def _as_json(_logger: object, _method: str, event: structlog.typing.EventDict) -> str:
    """One line; a value that JSON does not know is shown as Python shows it."""
    return _encode(event).decode()


_encode = msgspec.json.Encoder(enc_hook=repr).encode
