"""The OpenAPI document's page at `/docs`. Its script and style come from a package: nothing is fetched from elsewhere.

The page may load only what this gateway serves (its Content-Security-Policy says so), and no page may frame it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response

from headrace.errors import HeadraceError, error_for, invalid_request

_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "favicon-32x32.png": "image/png",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_HEADERS = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>headrace admin API</title>
<link rel="icon" href="/docs/favicon-32x32.png">
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""
_START = """SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#page",
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  filter: true,
  validatorUrl: null,
});
"""
_DAY = "public, max-age=86400"


def document_routes(document: Callable[[], Mapping[str, object]]) -> APIRouter:
    """The document, its page and what that loads; none of these routes is in it.

    `document` may take a quarter of a second when it is first called, so that is done in a thread.
    """
    router = APIRouter(include_in_schema=False)

    @router.get("/openapi.json")
    async def openapi() -> Response:
        body = json.dumps(await asyncio.to_thread(document)).encode()
        return Response(body, headers={"x-content-type-options": "nosniff"}, media_type="application/json")

    @router.get("/docs")
    async def page() -> Response:
        return Response(_PAGE, headers=_HEADERS, media_type="text/html; charset=utf-8")

    @router.get("/docs/start.js")
    async def start() -> Response:
        return Response(_START, headers=_HEADERS, media_type="text/javascript; charset=utf-8")

    @router.get("/docs/{name}")
    async def asset(name: str) -> Response:
        if name not in _ASSETS:
            raise not_here()
        headers = {**_HEADERS, "cache-control": _DAY}
        return Response(await asyncio.to_thread(_content, name), headers=headers, media_type=_ASSETS[name])

    return router


def not_here() -> HeadraceError:
    """404 for a file that is not one of the page's."""
    return error_for(invalid_request("There is nothing at this path. See /docs for what is served.", status=404))


def _content(name: str) -> bytes:
    return files("fastapi_swagger.resources").joinpath(name).read_bytes()
