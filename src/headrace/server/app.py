"""The ASGI application: which path leads to which handler.

The most used routes come first. A request is judged by the route it matched and by nothing else: paths are not
normalised, slashes are not added, so a path that looks like another is another, and leads nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from headrace.server.asgi import Endpoint
from headrace.server.exchange import Handler
from headrace.server.health import Health
from headrace.server.intake import Intake
from headrace.server.ports import GatewayPort
from headrace.server.refusals import unknown_route
from headrace.server.settings import ServerSettings
from headrace.server.v1 import DataPath

_READ = ("GET", "HEAD")
_ANY = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def build_app(
    gateway: GatewayPort,
    settings: ServerSettings,
    registry: CollectorRegistry,
    health: Health | None = None,
    data_path: DataPath | None = None,
) -> ASGIApp:
    """The application in front of `gateway`. `health` is handed in by whoever tells it that the process stops."""
    intake = Intake(settings)
    data_path = data_path or DataPath(gateway, settings)
    health = health or Health(gateway, registry)

    def post(path: str, handler: Handler) -> list[Route]:
        endpoint = Endpoint(handler, ("POST",), intake, reads_body=True)
        return [Route(f"/v1{path}", endpoint), Route(path, endpoint)]

    def get(handler: Handler, *paths: str) -> list[Route]:
        endpoint = Endpoint(handler, _READ, intake)
        return [Route(path, endpoint) for path in paths]

    routes: Sequence[Route] = [
        *post("/chat/completions", data_path.answering("chat")),
        *post("/completions", data_path.answering("completions")),
        *post("/embeddings", data_path.answering("embeddings")),
        *get(data_path.models, "/v1/models", "/models"),
        *get(data_path.model, "/v1/models/{id:path}", "/models/{id:path}"),
        *get(data_path.queue, "/v1/queue/me", "/queue/me"),
        *get(health.metrics, "/metrics"),
        *get(health.ready, "/ready", "/readyz"),
        *get(health.live, "/live", "/livez"),
        *get(health.health, "/health", "/healthz"),
        *get(health.version, "/version"),
    ]
    return Router(routes, redirect_slashes=False, default=Endpoint(unknown_route, _ANY, intake))
