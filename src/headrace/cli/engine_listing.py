"""An engine asked, from a terminal, what it is and which models it has."""

from __future__ import annotations

import http.client
import json
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from headrace.cli import Refused
from headrace.model import Engine
from headrace.wire.discovery import MODELS, Found, look

PATIENCE = 5.0
"""Seconds for one answer."""
LONGEST_LIST = 1024 * 1024
"""Bytes of a list that are read; a longer one is none."""


class Asker:
    """One engine. Calling it gets the JSON at a path, or None, and notes why there was none.

    Raises Refused when nothing answers there at all: no further path needs to be tried.
    """

    def __init__(self, address: str, key: str | None, patience: float = PATIENCE) -> None:
        self.address = address
        self.locked = False
        """It wants a key, or another one."""
        self._headers = {"accept": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        self._patience = patience
        self._opener = build_opener(ProxyHandler({}))

    def __call__(self, path: str) -> object:
        """The JSON at `path`."""
        request = Request(f"{self.address}{path}", headers=self._headers)  # noqa: S310  # addresses are http(s)
        try:
            with self._opener.open(request, timeout=self._patience) as response:
                body: bytes = response.read(LONGEST_LIST + 1)
        except HTTPError as error:
            error.close()
            self.locked = self.locked or error.code in (401, 403)
            return None
        except (URLError, OSError, http.client.HTTPException) as error:
            raise Refused(self._unreached(error.reason if isinstance(error, URLError) else error)) from None
        if len(body) > LONGEST_LIST:
            return None
        try:
            found: object = json.loads(body)
        except (ValueError, RecursionError):
            return None
        return found

    def _unreached(self, reason: object) -> str:
        if isinstance(reason, ConnectionRefusedError):
            return f"nothing answers at {self.address}; is the engine running, and is it this port?"
        if isinstance(reason, TimeoutError):
            return f"{self.address} did not answer within {self._patience:.0f} seconds"
        if isinstance(reason, http.client.HTTPException):
            return f"what answers at {self.address} speaks no HTTP"
        return f"{self.address} cannot be reached ({reason})"


def find(address: str, kind: Engine | None, key: str | None) -> Found:
    """What runs at `address`, a base URL. Raises Refused if that cannot be told."""
    ask = Asker(address, key)
    found = look(ask, kind)
    if found is not None:
        return found
    if ask.locked:
        raise Refused(f"{address} wants a key; name the variable that holds it with --api-key-env")
    what = kind.value if kind is not None else "engine"
    raise Refused(f"what answers at {address} is no {what} that headrace knows: it lists no models, as at {MODELS}")
