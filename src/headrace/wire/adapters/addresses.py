"""Where an engine's API stands behind its address.

An address is either the server (`http://gpu-1:8000`, `https://host/prefix`) or the API's root as official clients
want it (`https://api.example.com/v1`, `https://host/v1beta/openai`). The second is known by a segment that names a
version.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}
_VERSION = re.compile(r"/v\d+[a-z0-9]*(/|$)")


@lru_cache(maxsize=1024)
def is_api_root(address: str) -> bool:
    """Whether `address` already holds the API's version."""
    return _VERSION.search(urlsplit(address).path) is not None


def api_path(address: str, path: str) -> str:
    """What to put behind `address` (without a slash at its end) to reach `path` of the API."""
    return path if is_api_root(address) else f"/v1{path}"


def same_place(address: str) -> str:
    """`address` in a spelling of its own, to compare with others: no slash or `/v1` at its end, the host in lower case,
    no port where it is the usual one."""
    parts = urlsplit(address)
    try:
        port = parts.port
    except ValueError:
        return address
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    place = host if port in (None, _PORTS.get(parts.scheme)) else f"{host}:{port}"
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{place}{path}" if place else ""


def server_root(address: str) -> str:
    """`address` without the segment that names the API's version and what follows it: where health and metrics are."""
    parts = urlsplit(address)
    version = _VERSION.search(parts.path)
    path = parts.path if version is None else parts.path[: version.start()]
    return f"{parts.scheme}://{parts.netloc}{path.rstrip('/')}"
