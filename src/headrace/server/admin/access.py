"""Who may use the admin API: a pure judgement on what a request says of itself.

With a key: whoever presents it, in `X-API-Key` or as a bearer token. Without one: this machine only, and only directly.
A request that came through a proxy is somebody else's although its peer is loopback, and so is what a browser sends on
behalf of a page from elsewhere: pages are told apart by `Origin` and `Sec-Fetch-Site` (Fetch, W3C), and a name that was
rebound to loopback by `Host`, which still holds that name.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.errors import Fault

_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via", "cf-connecting-ip")
_LONGEST_KEY = 4096
_HOW = "Set admin.api_key_env (or admin.api_key) in the configuration and send the key as X-API-Key."


@dataclass(frozen=True, slots=True)
class Asking:
    """What is known of a request: its method, the peer's address, and a way to its headers by lower-case name."""

    method: str
    peer: str
    header: Callable[[str], str | None]


def refusal(key: str | None, asking: Asking) -> Fault | None:
    """Why this request may not use the admin API; None: it may. `key` None: no key is configured."""
    return _without_key(asking) if key is None else _with_key(key, asking)


def _with_key(key: str, asking: Asking) -> Fault | None:
    bearer, plain = _bearer(asking.header("authorization")), asking.header("x-api-key")
    given = [text for text in (bearer, plain) if text is not None]
    if not given:
        message = "The admin API needs its key: send it as X-API-Key, or as Authorization: Bearer."
        return Fault(401, "authentication_error", "missing_api_key", message, retryable=False)
    # All are compared, as bytes and in constant time: neither characters nor time tell anything of the key.
    right = [hmac.compare_digest(_bytes(text[:_LONGEST_KEY]), key.encode()) for text in given]
    if all(right):
        return None
    return Fault(401, "authentication_error", "invalid_api_key", "This is not the admin API's key.", retryable=False)


def _without_key(asking: Asking) -> Fault | None:
    if not is_loopback(asking.peer):
        return _closed(f"The admin API has no key and so answers this machine only. {_HOW}")
    if any(asking.header(name) is not None for name in _FORWARDED):
        return _closed(f"The admin API has no key and so answers nothing that comes through a proxy. {_HOW}")
    host = asking.header("host") or ""
    if not _is_here(_hostname(host)):
        return _closed(f"The admin API has no key and so is reached as localhost or 127.0.0.1 only. {_HOW}")
    origin = asking.header("origin")
    if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
        return _closed("A page from elsewhere may not use the admin API.")
    site, mode = asking.header("sec-fetch-site") or "none", asking.header("sec-fetch-mode")
    followed = asking.method in ("GET", "HEAD") and mode == "navigate"
    if site not in ("none", "same-origin") and not followed:
        return _closed("A page from elsewhere may not use the admin API.")
    return None


def is_loopback(peer: str) -> bool:
    """Whether an address is this machine's own; "" is not."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _closed(message: str) -> Fault:
    return Fault(403, "permission_error", "admin_closed", message, retryable=False)


def _bearer(value: str | None) -> str | None:
    if value is None:
        return None
    scheme, _, token = value.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _bytes(header: str) -> bytes:
    """Headers arrive as Latin-1; keys are printable ASCII."""
    return header.encode("utf-8", "surrogatepass")


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_here(name: str) -> bool:
    return name == "localhost" or is_loopback(name)
