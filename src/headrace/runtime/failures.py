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
    SHORTAGE = "shortage"
    """No socket, port or file descriptor was left for a connection: ours, and nothing is said of the engine."""


class UpstreamFailed(Exception):
    """No complete answer. `detail` is for operators; it names no host, port, path or key."""

    def __init__(self, failure: Failure, detail: str) -> None:
        super().__init__(f"{failure}: {detail}")
        self.failure = failure
        self.detail = detail


class NoSocket(OSError):
    """A connection could not be tried, for lack of something of our own."""


_OUR_OWN = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def ours(error: OSError, *, ipv4: bool) -> bool:
    """Whether there is no connection because we lack sockets, ports or descriptors. `ipv4`: it was to an IPv4 address.

    A machine without IPv6 says of every such address what it says of IPv4 when it has no port left. Who looks up a name
    without a descriptor is told that there is no such name, so it is seen whether a socket could be made.
    """
    if isinstance(error, socket.gaierror):
        try:
            socket.socket().close()
        except OSError as refused:
            return refused.errno in _OUR_OWN
        return False
    return error.errno in _OUR_OWN or (ipv4 and error.errno == errno.EADDRNOTAVAIL)


def unconnected(error: OSError | ValueError) -> UpstreamFailed:
    """Why there is no connection."""
    match error:
        case NoSocket():
            return UpstreamFailed(Failure.SHORTAGE, f"no socket to connect with{errno_of(error)}")
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
