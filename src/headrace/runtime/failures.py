"""The HTTP client library's errors in headrace's words: what failed, and a text that gives nothing away."""

from __future__ import annotations

import errno
import socket
import ssl
from enum import StrEnum

import aiohttp
from aiohttp import http_exceptions


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


# What the library raises for a broken exchange, beside cancellation. ValueError: an address or header it refuses.
BREAKAGE = (aiohttp.ClientError, http_exceptions.HttpProcessingError, OSError, ValueError)

_GARBLED = (http_exceptions.ContentEncodingError, http_exceptions.DecompressSizeError, http_exceptions.LineTooLong)


def translated(error: Exception) -> UpstreamFailed:
    """The failure that one of `BREAKAGE` stands for."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return UpstreamFailed(Failure.CONNECT, "no connection in time")
        case aiohttp.ClientConnectorDNSError():
            return UpstreamFailed(Failure.CONNECT, "the name cannot be resolved")
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError() | aiohttp.ClientSSLError():
            return UpstreamFailed(Failure.CONNECT, "no secure connection")
        case aiohttp.ClientConnectorError():
            return UpstreamFailed(Failure.CONNECT, f"no connection{errno_of(error.os_error)}")
        case aiohttp.ClientHttpProxyError():
            return UpstreamFailed(Failure.CONNECT, f"the proxy refused ({error.status})")
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return UpstreamFailed(Failure.CONNECT, "the address is no HTTP address")
        case aiohttp.ClientPayloadError():
            if isinstance(error.__cause__, _GARBLED):
                return UpstreamFailed(Failure.PROTOCOL, "the body cannot be unpacked")
            return UpstreamFailed(Failure.CUT, "closed in the middle of the body")
        case aiohttp.ServerDisconnectedError():
            return UpstreamFailed(Failure.CUT, "closed before the end of the answer")
        case aiohttp.ClientResponseError() | http_exceptions.HttpProcessingError():
            return UpstreamFailed(Failure.PROTOCOL, "not an HTTP answer, or a header too large")
        case OSError() | aiohttp.ClientConnectionError():
            return UpstreamFailed(Failure.CUT, f"connection lost{errno_of(error)}")
        case _:
            return UpstreamFailed(Failure.PROTOCOL, "the exchange failed")


def unanswered(error: Exception) -> bool:
    """Whether the connection ended without a byte of an answer (a part of a head would ride on the error)."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return isinstance(error.message, str)
    return isinstance(error, aiohttp.ClientOSError | aiohttp.ClientConnectionResetError)


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
