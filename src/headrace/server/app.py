"""The ASGI application: which path leads to which handler.

The most used routes come first. A request is judged by the route it matched and by nothing else: paths are not
normalised, slashes are not added, so a path that looks like another is another, and leads nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.server.admin.door import AdminDoor
from headrace.server.asgi import Endpoint
from headrace.server.exchange import Handler
from headrace.server.health import Health
from headrace.server.intake import Intake
from headrace.server.overhead import own_times
from headrace.server.ports import GatewayPort
from headrace.server.refusals import unknown_route
from headrace.server.settings import ServerSettings
from headrace.server.v1 import DataPath

_READ = ("GET", "HEAD")
_ANY = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Application:
    """The ASGI application; and beside it what a connection needs to serve the most used routes without ASGI.

    `direct` has those routes by their paths as they are requested. All of them take POST with a JSON body only.
    """

    def __init__(self, router: ASGIApp, direct: Mapping[bytes, tuple[str, Handler]], intake: Intake) -> None:
        self._router = router
        self.direct = direct
        self.intake = intake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request over ASGI."""
        await self._router(scope, receive, send)


def build_app(
    gateway: GatewayPort,
    settings: ServerSettings,
    registry: CollectorRegistry,
    health: Health | None = None,
    data_path: DataPath | None = None,
) -> Application:
    """The application in front of `gateway`. `health` is handed in by whoever tells it that the process stops."""
    intake = Intake(settings)
    data_path = data_path or DataPath(gateway, settings, overhead=own_times(registry))
    health = health or Health(gateway, registry)

    answering = {
        "/chat/completions": data_path.answering("chat"),
        "/completions": data_path.answering("completions"),
        "/embeddings": data_path.answering("embeddings"),
    }
    direct = {f"{version}{path}": handler for path, handler in answering.items() for version in ("/v1", "")}

    def get(handler: Handler, *paths: str) -> list[Route]:
        endpoint = Endpoint(handler, _READ, intake)
        return [Route(path, endpoint) for path in paths]

    cancelling = Endpoint(data_path.cancel, ("DELETE",), intake)
    routes: Sequence[Route] = [
        *(Route(path, Endpoint(handler, ("POST",), intake, reads_body=True)) for path, handler in direct.items()),
        *get(data_path.models, "/v1/models", "/models"),
        *get(data_path.model, "/v1/models/{id:path}", "/models/{id:path}"),
        *get(data_path.queue, "/v1/queue/me", "/queue/me"),
        Route("/v1/queue/{id:path}", cancelling),
        Route("/queue/{id:path}", cancelling),
        *get(health.metrics, "/metrics"),
        *get(health.ready, "/ready", "/readyz"),
        *get(health.live, "/live", "/livez"),
        *get(health.health, "/health", "/healthz"),
        *get(health.version, "/version"),
        *_administration(gateway, settings, intake),
    ]
    router = Router(routes, redirect_slashes=False, default=Endpoint(unknown_route, _ANY, intake))
    return Application(router, {path.encode(): (path, handler) for path, handler in direct.items()}, intake)


def _administration(gateway: GatewayPort, settings: ServerSettings, intake: Intake) -> Sequence[Route]:
    """The way to the admin API, if the gateway can be administered. What lies behind it is loaded when it is used."""
    port = gateway.administration
    if port is None:
        return ()

    def load() -> ASGIApp:
        from headrace.server.admin.app import build_admin  # noqa: PLC0415 - FastAPI is not loaded in vain

        return build_admin(port, settings.admin)

    return AdminDoor(load, settings.admin.key, intake, settings.workers).routes()
