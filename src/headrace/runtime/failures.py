"""What can go wrong with a call to an engine, in headrace's words, and the system's errors as one of them."""

from __future__ import annotations

import errno
import socket
import ssl
from enum import StrEnum


class Failure(StrEnum):
    """Why an exchange did not end well."""

    CONNECT = "connect"
    """No connection: refused, unreachable, not resolved, TLS failed, not in time."""
    TIMEOUT = "timeout"
    """No complete answer in time (only where the client itself has a limit: `Upstream.fetch`)."""
    CUT = "cut"
    """Closed or reset before the end of the answer."""
    PROTOCOL = "protocol"
    """What came is no HTTP answer, or is larger than it may be."""


class UpstreamFailed(Exception):
    """No complete answer. `detail` is for operators; it names no host, port, path or key."""

    def __init__(self, failure: Failure, detail: str) -> None:
        super().__init__(f"{failure}: {detail}")
        self.failure = failure
        self.detail = detail


def unconnected(error: OSError | ValueError) -> UpstreamFailed:
    """Why there is no connection."""
    match error:
        case TimeoutError():
            return UpstreamFailed(Failure.CONNECT, "no connection in time")
        case ssl.SSLError():
            return UpstreamFailed(Failure.CONNECT, "no secure connection")
        case socket.gaierror() | UnicodeError():
            return UpstreamFailed(Failure.CONNECT, "the name cannot be resolved")
        case _:
            return UpstreamFailed(Failure.CONNECT, f"no connection{errno_of(error)}")


def errno_of(error: Exception) -> str:
    """The name of a system error's number in brackets, with a blank before it; "" without one."""
    number = error.errno if isinstance(error, OSError) else None
    return f" ({errno.errorcode[number]})" if number is not None and number in errno.errorcode else ""
