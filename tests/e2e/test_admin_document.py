"""The admin API does what its own OpenAPI document says, whatever is sent to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
import structlog
from prometheus_client import CollectorRegistry
from schemathesis import APIOperation, Case
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from headrace.build import build
from headrace.cli.serve import server_settings
from headrace.config import Config
from headrace.server import hosted
from tests.patience import GUARD

pytestmark = pytest.mark.slow

schemathesis.serializer.alias("application/x-ndjson", "text/plain")

EXAMPLES = 20
"""Requests that are made up for each operation."""
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
STREAMS = "/admin/dlq/events"
"""Ends only with its caller."""


@contextmanager
def running() -> Iterator[str]:
    """A gateway in a thread of its own, with the echo engine; its URL."""
    config = Config.model_validate({"instances": [{"id": "a", "engine": "echo"}], "dead_letters": {"path": None}})
    ready, stop = threading.Event(), asyncio.Event()
    found: list[tuple[asyncio.AbstractEventLoop, str]] = []

    async def serve() -> None:
        registry = CollectorRegistry()
        async with (
            build(config, registry=registry, random=Random(1)) as headrace,
            hosted(headrace, server_settings(config), registry) as url,
        ):
            found.append((asyncio.get_running_loop(), url))
            ready.set()
            await stop.wait()

    with structlog.testing.capture_logs():
        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        assert ready.wait(GUARD)
        ((loop, url),) = found
        try:
            yield url
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(GUARD)


def test_every_answer_is_one_that_the_document_names() -> None:
    """No 5xx, and no status, media type or body that is not in the document, for good and for broken requests."""
    with running() as url:
        document = requests.get(f"{url}/openapi.json", timeout=GUARD).json()
        schema = schemathesis.openapi.from_dict(document).exclude(path=STREAMS)
        operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
        assert len(operations) >= 20
        for operation in operations:
            for mode in schemathesis.GenerationMode:
                obeys(operation, mode, url)


def obeys(operation: APIOperation[Any, Any, Any, Any], mode: schemathesis.GenerationMode, url: str) -> None:
    """Send made-up requests to one operation and hold every answer against the document."""

    @hypothesis.given(operation.as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def holds(case: Case[Any]) -> None:
        if mode is schemathesis.GenerationMode.POSITIVE and case.method != "DELETE" and "/dlq" not in case.path:
            # An instance that is there: made-up names lead to 404 only.
            case.path_parameters = dict.fromkeys(case.path_parameters or (), "a")
        case.call_and_validate(base_url=url, timeout=GUARD, checks=CHECKS)

    try:
        holds()
    except hypothesis.errors.Unsatisfiable:
        assert mode is schemathesis.GenerationMode.NEGATIVE, "a request without parts cannot be broken"
