"""The admin API of a running gateway, as commands use it: where it is, with which key, and what a refusal says.

Everything is one small request and one small answer, so this is plain blocking HTTP.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import typer

from headrace.cli import Refused
from headrace.cli.groups import From
from headrace.cli.replies import DEFAULT_URL, base_of, message_of
from headrace.wire.adapters.addresses import same_place

PATIENCE = 30.0
"""Seconds for one answer."""
LONGEST_ANSWER = 64 * 1024 * 1024
"""Bytes of an answer that are read."""

GatewayUrl = Annotated[str, typer.Option("--gateway", help="Address of the gateway.", envvar="HEADRACE_URL")]
AdminKey = Annotated[
    str | None, typer.Option("--key", help="Key of its admin API, if it has one.", envvar="HEADRACE_ADMIN_KEY")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as it came.")]


class AdminClient:
    """One gateway. Every method raises Refused, with a sentence for the person who asked."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = base_of(url)
        if not _is_address(self.url):
            raise Refused(f"'{url}' is no address of a gateway; it looks like {DEFAULT_URL}")
        self._key = key
        self._opener = build_opener(ProxyHandler({}))

    def refuse_itself(self, engine: str) -> None:
        """Raises when the address of an engine is this gateway's own: it would ask itself, without end."""
        own, other = (same_place(place.replace("//localhost", "//127.0.0.1", 1)) for place in (self.url, engine))
        if own == other:
            raise Refused(f"{engine} is the gateway itself; give the address of an engine")

    def get(self, path: str, **query: str | float | None) -> dict[str, object]:
        """What is at a path below `/admin`; a query's values that are None are left out."""
        asked = urlencode({name: value for name, value in query.items() if value is not None})
        return self.call("GET", f"{path}?{asked}" if asked else path)

    def post(self, path: str, body: Mapping[str, object] | None = None) -> dict[str, object]:
        """Make or do something."""
        return self.call("POST", path, body)

    def patch(self, path: str, body: Mapping[str, object]) -> dict[str, object]:
        """Change something."""
        return self.call("PATCH", path, body)

    def delete(self, path: str) -> dict[str, object]:
        """Remove something."""
        return self.call("DELETE", path)

    def call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, object]:
        """One request to `/admin` and what follows; the answer's JSON."""
        data = None if body is None else json.dumps(body).encode()
        with self._opened(method, path, data, "application/json", PATIENCE) as response:
            return self._read(self._heard(lambda: response.read(LONGEST_ANSWER)))

    def lines(self, method: str, path: str, data: bytes | None = None, patience: float = PATIENCE) -> Iterator[bytes]:
        """The lines of an answer as they come; `data` is lines, too, and `patience` the longest silence in seconds."""
        with self._opened(method, path, data, "application/x-ndjson", patience) as response:
            while line := self._heard(response.readline):
                yield line

    def _opened(
        self, method: str, path: str, data: bytes | None, kind: str, patience: float
    ) -> http.client.HTTPResponse:
        headers = {"accept": "*/*"}
        if data is not None:
            headers["content-type"] = kind
        if self._key:
            headers["x-api-key"] = self._key
        request = Request(f"{self.url}/admin{path}", data, headers, method=method)  # noqa: S310 - http(s), see above
        try:
            response: http.client.HTTPResponse = self._opener.open(request, timeout=patience)
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(self._told(error.code, error.read(LONGEST_ANSWER))) from None
        except urllib.error.URLError as error:
            raise Refused(self._unreached(error.reason)) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Refused(self._unreached(error)) from None
        return response

    def _heard(self, read: Callable[[], bytes]) -> bytes:
        """What a read of an answer brings."""
        try:
            return read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Refused(self._unreached(error)) from None

    def _read(self, answer: bytes) -> dict[str, object]:
        try:
            body: object = json.loads(answer)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise Refused(f"what answers at {self.url} is no gateway, or one without an admin API")
        return body

    def _told(self, status: int, answer: bytes) -> str:
        """The gateway's own words; what to do about a key, in a command's terms."""
        message = message_of(answer)
        if not message:
            return f"what answers at {self.url} is no gateway, or one without an admin API (it said {status})"
        if status in (401, 403) and not self._key:
            return f"{message} Give it with --key or HEADRACE_ADMIN_KEY."
        return message

    def _unreached(self, reason: object) -> str:
        if isinstance(reason, ConnectionRefusedError):
            return f"nothing answers at {self.url}; `headrace serve` starts a gateway, --gateway names another one"
        if isinstance(reason, TimeoutError):
            return f"{self.url} did not answer within {PATIENCE:g} s"
        if isinstance(reason, UnicodeError | ValueError) and not isinstance(reason, OSError):
            return f"'{self.url}' is no address of a gateway, or the key holds characters that no header may carry"
        return f"{self.url} cannot be reached"


def admin_client(*, gateway: GatewayUrl = DEFAULT_URL, key: AdminKey = None) -> AdminClient:
    """The gateway that a command's options name."""
    return AdminClient(gateway, key)


Client = Annotated[AdminClient, From(admin_client)]
"""For commands that are `grouped`: the gateway of `--gateway` and `--key`."""


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def instance_path(name: str, *more: str) -> str:
    """`/instances/ID`, and what follows it."""
    return "/".join(("/instances", quote(name, safe=""), *more))
