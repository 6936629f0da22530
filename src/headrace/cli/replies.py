"""A running gateway, for the commands that talk to one: where it is, and what it says when it refuses."""

from __future__ import annotations

import json
from typing import Annotated

import typer

DEFAULT_URL = "http://127.0.0.1:8080"
Url = Annotated[str, typer.Option(help="Address of the gateway.", envvar="HEADRACE_URL")]


def base_of(url: str) -> str:
    """The address without a trailing slash or `/v1`, which people copy along."""
    return url.rstrip("/").removesuffix("/v1")


def message_of(data: bytes) -> str:
    """The message of an error body, or "" where there is none."""
    try:
        return message_in(json.loads(data))
    except ValueError:
        return ""


def message_in(body: object) -> str:
    """The message of an error body that has been read already, or ""."""
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else ""
