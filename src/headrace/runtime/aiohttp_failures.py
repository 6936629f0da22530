"""aiohttp's errors in headrace's words: what failed, and a text that gives nothing away. Loaded with aiohttp only."""

from __future__ import annotations

from ipaddress import IPv4Address

import aiohttp
from aiohttp import http_exceptions

from headrace.runtime.failures import Failure, UpstreamFailed, errno_of, ours

# What the library raises for a broken exchange, beside cancellation. ValueError: an address or header it refuses.
BREAKAGE = (aiohttp.ClientError, http_exceptions.HttpProcessingError, OSError, ValueError)

_GARBLED = (http_exceptions.ContentEncodingError, http_exceptions.DecompressSizeError, http_exceptions.LineTooLong)


def translated(error: Exception) -> UpstreamFailed:
    """The failure that one of `BREAKAGE` stands for."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return UpstreamFailed(Failure.CONNECT, "no connection in time")
        case aiohttp.ClientConnectorError() if ours(error.os_error, ipv4=_is_ipv4(error.host)):
            return UpstreamFailed(Failure.SHORTAGE, f"no socket to connect with{errno_of(error.os_error)}")
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


def _is_ipv4(host: str) -> bool:
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True
