"""The admin API as a FastAPI application: its routers, its errors in one shape, and its document.

Whoever gets here has passed `door`. Every error is `{"error": {"message", "type", "param", "code"}}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from headrace import __version__
from headrace.config.reading import path_of
from headrace.config.wording import worded
from headrace.errors import Fault, HeadraceError, internal_error, invalid_request
from headrace.server.admin.dead_letters import dead_letter_routes
from headrace.server.admin.documents import document_routes
from headrace.server.admin.instances import instance_routes
from headrace.server.admin.operation import operation_routes
from headrace.server.admin.ports import AdminPort
from headrace.server.admin.shapes import ErrorBody
from headrace.server.settings import AdminSettings
from headrace.wire.openai import error_body

_ABOUT = """Operate a running headrace: instances, breakers, what goes on, dead letters.

Send the key as `X-API-Key`, or as `Authorization: Bearer`. Without a configured key only this machine is let in.
Every error is `{"error": {"message", "type", "param", "code"}}`; the message says what to do.
"""
_OF_BODY = {
    "missing": "The body is missing. Send a JSON object.",
    "model_attributes_type": "The body must be a JSON object.",
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in {
        400: "The body cannot be read, or an address must not be used",
        401: "No key, or a wrong one",
        403: "Closed: no key is configured, and the caller is not this machine",
        404: "There is no such thing",
        408: "The body did not arrive in time",
        409: "It is there already, or in use",
        413: "The body is too large",
        415: "The body is not JSON",
        422: "A field is wrong; `param` names it",
        500: "A mistake of the gateway; its log has the details",
        503: "No room at the moment",
    }.items()
}


def build_admin(port: AdminPort, settings: AdminSettings) -> FastAPI:
    """The application for one gateway."""
    app = FastAPI(
        title="headrace admin API",
        description=_ABOUT,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        responses=_ERRORS,
        generate_unique_id_function=lambda route: route.name,
        swagger_ui_oauth2_redirect_url=None,
    )
    _secure(app)
    for router in (
        instance_routes(port, settings.listed, settings.key_variables),
        operation_routes(port),
        dead_letter_routes(port),
        document_routes(app.openapi),
    ):
        app.include_router(router)
    app.add_exception_handler(HeadraceError, _faulty)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _unserved)
    app.add_exception_handler(Exception, _mistaken)
    return app


def _secure(app: FastAPI) -> None:
    """Let the document tell how callers identify themselves; it is made when it is first asked for."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        schema = plain()
        schema["components"]["securitySchemes"] = {
            "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            "bearer": {"type": "http", "scheme": "bearer"},
        }
        schema["security"] = [{"key": []}, {"bearer": []}]
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def _answer(fault: Fault, headers: Mapping[str, str] | None = None) -> Response:
    advice = dict(headers or {})
    if fault.retry_after_seconds is not None:
        advice["retry-after"] = str(fault.retry_after_seconds)
    return Response(error_body(fault), fault.status, advice, "application/json")


async def _faulty(_: Request, error: Exception) -> Response:
    assert isinstance(error, HeadraceError)
    return _answer(error.fault)


async def _invalid(_: Request, error: Exception) -> Response:
    """The first thing that is wrong, with its field; how many more there are."""
    assert isinstance(error, RequestValidationError)
    # A key that is not known is often why others are missing.
    problems: Sequence[Mapping[str, Any]] = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    first = problems[0]
    kind, loc = first["type"], first["loc"]
    of_body = loc[0] == "body"
    param = path_of(loc[1:], error.body, missing=kind == "missing") if of_body else str(loc[-1])
    text = worded(kind, first["msg"], first.get("ctx"))
    if kind == "extra_forbidden":
        text = "unknown key; /docs lists the known ones"
    elif loc == ("body",):
        text = _OF_BODY.get(kind, text)
    if kind == "json_invalid":
        return _answer(invalid_request(f"The body is no JSON: {first['ctx']['error']}.", code="invalid_json"))
    more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
    message = f"{param}: {text}{more}" if param else f"{text}{more}"
    return _answer(invalid_request(message, param=param or None, code="invalid_field", status=422))


async def _unserved(_: Request, error: Exception) -> Response:
    """404 and 405 of the router, and what it could not read."""
    assert isinstance(error, HTTPException)
    message = {
        400: "The body cannot be read as JSON.",
        404: "There is nothing at this path. See /docs for what is served.",
        405: "This method is not possible here. See /docs for what is served.",
    }.get(error.status_code, str(error.detail))
    return _answer(invalid_request(message, status=error.status_code), error.headers)


async def _mistaken(_: Request, __: Exception) -> Response:
    """A bug; the caller is told nothing of it, and the door logs it."""
    return _answer(internal_error())
