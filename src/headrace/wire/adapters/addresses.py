"""Where an engine's API stands behind its address.

An address is either the server (`http://gpu-1:8000`, `https://host/prefix`) or the API's root as official clients
want it (`https://api.example.com/v1`, `https://host/v1beta/openai`). The second is known by a segment that names a
version.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import urlsplit

_VERSION = re.compile(r"/v\d+[a-z0-9]*(/|$)")


@lru_cache(maxsize=1024)
def is_api_root(address: str) -> bool:
    """Whether `address` already holds the API's version."""
    return _VERSION.search(urlsplit(address).path) is not None


def api_path(address: str, path: str) -> str:
    """What to put behind `address` (without a slash at its end) to reach `path` of the API."""
    return path if is_api_root(address) else f"/v1{path}"


def server_root(address: str) -> str:
    """`address` without the segment that names the API's version and what follows it: where health and metrics are."""
    parts = urlsplit(address)
    version = _VERSION.search(parts.path)
    path = parts.path if version is None else parts.path[: version.start()]
    return f"{parts.scheme}://{parts.netloc}{path.rstrip('/')}"
