"""The HTTP front door: `build_app` for any ASGI server, `run` for a process of its own."""

from headrace.server.app import build_app
from headrace.server.serving import hosted, listen, make_server, run, serve
from headrace.server.settings import ServerSettings

__all__ = ["ServerSettings", "build_app", "hosted", "listen", "make_server", "run", "serve"]
