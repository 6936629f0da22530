"""The way to the admin API: who may pass, and how much may be sent; what lies behind it is loaded when first used.

FastAPI and the models of this API take a quarter of a second and some MiB, which a gateway that nobody administers
over HTTP should not pay. So the routes lead here, to plain ASGI: a request is judged first (`access`), its body is read
under the front door's bounds, and only then the application is made, in a thread, so that no stream waits for it.

The judgement hangs on the route that was matched and holds for everything behind it; no path is open beside it. The
document and its page say nothing about this gateway and are shown without the key once there is one, because a browser
cannot send it before it has the page to type it into.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import Fault, HeadraceError, internal_error, invalid_request
from headrace.server.admin.access import Asking, refusal
from headrace.server.asgi import AsgiExchange
from headrace.server.intake import CallerGone, Intake, announced
from headrace.server.refusals import refuse_early

_log = structlog.get_logger("headrace.admin")

_DOCUMENTS = ("/docs", "/openapi.json")
_SHARED, _OWN = "/admin/dlq", "/admin/dlq/replay"
"""What all workers have in common, and what of it is carried out by one."""
_LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl")


class AdminDoor:
    """The ASGI application behind `/admin`, `/docs` and `/openapi.json`.

    Args:
        load: makes the application; called once, in a thread.
        key: what a caller must present; None: only this machine is let in.
        intake: reads bodies under the front door's bounds.
        workers: processes like this one; where there are several, what would change only this one is refused.
    """

    def __init__(self, load: Callable[[], ASGIApp], key: str | None, intake: Intake, workers: int = 1) -> None:
        self._load = load
        self._key = key
        self._intake = intake
        self._workers = workers
        self._loading: asyncio.Task[ASGIApp] | None = None

    @property
    def loaded(self) -> bool:
        """Whether the application has been made."""
        return self._loading is not None and self._loading.done()

    def routes(self) -> list[Route]:
        """The paths that lead here."""
        paths = ("/admin", "/admin/{path:path}", "/docs", "/docs/{path:path}", "/openapi.json")
        return [Route(path, self) for path in paths]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        exchange = AsgiExchange(scope, send)
        began = time.perf_counter()
        heard = _Heard(send)
        fault = self._refusal(exchange)
        try:
            if fault is not None:
                await self._refuse(exchange, fault, receive)
                return
            with self._intake.hold() as hold:
                body = await self._intake.read(hold, announced(exchange.headers), receive)
                app = await self._application()
                await app(dict(scope, path_params={}), _replayed(body, receive), heard)
        except CallerGone:
            return
        except HeadraceError as error:
            await self._refuse(exchange, error.fault, receive, ("connection", "close"))
        except Exception:  # noqa: BLE001 - the task's outer edge: a mistake of ours ends this request only
            _log.exception("admin request failed", path=exchange.path[:200])
            if not heard.status:
                await self._refuse(exchange, internal_error(), receive)
        finally:
            if heard.status:
                self._note(exchange, heard.status, time.perf_counter() - began)

    def _refusal(self, exchange: AsgiExchange) -> Fault | None:
        """Why this request is not let in; None: it is."""
        if self._key is not None and exchange.path.startswith(_DOCUMENTS) and exchange.method in ("GET", "HEAD"):
            return None
        fault = refusal(self._key, Asking(exchange.method, exchange.peer, exchange.header))
        return fault or self._partial(exchange) or _unreadable(exchange)

    def _partial(self, exchange: AsgiExchange) -> Fault | None:
        """Why a change is refused that the other workers would not hear of. Dead letters are the same for all."""
        path = exchange.path
        shared = path.startswith(_SHARED) and not path.startswith(_OWN)
        if self._workers == 1 or shared or exchange.method in ("GET", "HEAD"):
            return None
        message = (
            f"This gateway runs {self._workers} workers, and this would reach one of them only. Change the "
            "configuration file and restart, or run one worker."
        )
        return invalid_request(message, status=409)

    async def _application(self) -> ASGIApp:
        """The application, made by whoever comes first."""
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(self._load), name="admin")
        try:
            # The others still want it when the first one's caller leaves.
            return await asyncio.shield(self._loading)
        except Exception:
            self._loading = None
            raise

    async def _refuse(self, exchange: AsgiExchange, fault: Fault, receive: Receive, *headers: tuple[str, str]) -> None:
        challenge = [("www-authenticate", 'Bearer realm="headrace admin"')] if fault.status == 401 else []
        refuse_early(exchange, fault, *headers, *challenge)
        await exchange.run(receive, self._intake.settings.stall_timeout, linger=bool(headers))

    def _note(self, exchange: AsgiExchange, status: int, seconds: float) -> None:
        """Who changes what is worth a line; who looks is not."""
        write = _log.debug if exchange.method in ("GET", "HEAD") else _log.info
        write(
            "admin",
            method=exchange.method,
            path=exchange.path[:200],
            status=status,
            peer=exchange.peer,
            ms=round(seconds * 1000, 1),
        )


def _unreadable(exchange: AsgiExchange) -> Fault | None:
    """Bodies are JSON, or lines of it; a form that a page from elsewhere could send is neither."""
    if not announced(exchange.headers) and exchange.header("transfer-encoding") is None:
        return None
    media = (exchange.header("content-type") or "").partition(";")[0].strip().lower()
    json = media == "application/json" or (media.startswith("application/") and media.endswith("+json"))
    if not json and media not in _LINES:
        message = "The body must be JSON. Send it with content-type: application/json."
        return invalid_request(message, status=415)
    if (exchange.header("content-encoding") or "identity").strip().lower() != "identity":
        message = "Compressed bodies are not accepted. Send it without content-encoding."
        return invalid_request(message, status=415)
    return None


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body as one message, then what else comes: the caller's leaving."""
    told = False

    async def next_message() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


class _Heard:
    """Passes an answer on and notes its status; 0: it has not begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
        await self._send(message)
