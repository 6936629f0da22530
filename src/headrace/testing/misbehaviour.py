"""How a mock engine carries out an injected fault on one request."""

from __future__ import annotations

import asyncio
import json
import socket
import struct

from aiohttp import web

from headrace.testing.answers import error_body
from headrace.testing.faults import Fault, FaultName

_HTML = b"<!DOCTYPE html><html><head><title>502</title></head><body>Bad gateway</body></html>"
_BROKEN_JSON = b'{"id":"chatcmpl-mock","choices":[{"index":0,"delta":{"cont'
_STALLING = frozenset({FaultName.HANG, FaultName.SLOW, FaultName.STALL})


class Misbehaviour:
    """The fault of one request, or none. `struck` says that the answer was spoilt by it."""

    def __init__(self, fault: Fault | None) -> None:
        self.fault = fault
        self.struck = False
        self.sent = 0
        """Chunks with content sent so far."""

    @property
    def stall_after(self) -> int | None:
        """Tokens after which the request stands still, as the timing model wants it."""
        return self.fault.after if self.fault is not None and self.fault.name in _STALLING else None

    @property
    def stall(self) -> float:
        """For how many seconds it then stands still."""
        return self.fault.seconds if self.fault is not None and self.fault.name in _STALLING else 0.0

    async def instead(self, request: web.Request) -> web.StreamResponse | None:
        """The answer where the fault leaves no place for another one."""
        fault = self.fault
        if fault is None:
            return None
        if fault.name is FaultName.RESET and fault.after == 0:
            return self._leave(request, reset=True)
        if fault.name in (FaultName.FAIL, FaultName.RATE_LIMIT):
            self.struck = True
            headers = {"retry-after": fault.retry_after} if fault.name is FaultName.RATE_LIMIT else {}
            body = error_body(fault.status, fault.message, fault.type)
            return web.Response(status=fault.status, body=body, content_type="application/json", headers=headers)
        if fault.name is FaultName.GARBAGE:
            return await self._garbage(request, fault)
        return None

    async def strikes(self, request: web.Request, response: web.StreamResponse, *, at_chunk: bool) -> bool:
        """Carry out a fault that is due in a stream; True when nothing may be written after it.

        Before a chunk it is due once enough were sent, before the closing frames in any case.
        """
        fault = self.fault
        if self.struck:
            return True
        if fault is None or (at_chunk and self.sent < fault.after):
            return False
        if fault.name is FaultName.ERROR_EVENT:
            self.struck = True
            await response.write(b"data: " + _error_event(fault) + b"\n\n")
        elif fault.name in (FaultName.CUT, FaultName.RESET):
            self._leave(request, reset=fault.name is FaultName.RESET)
        return self.struck

    async def whole(self, request: web.Request, body: bytes) -> web.StreamResponse | None:
        """The spoilt answer in place of a whole one, or None."""
        fault = self.fault
        if fault is not None and fault.name is FaultName.ERROR_EVENT:
            self.struck = True
            return web.Response(body=_error_event(fault), content_type="application/json")
        if fault is None or fault.name not in (FaultName.CUT, FaultName.RESET):
            return None
        response = web.StreamResponse(headers={"content-type": "application/json", "content-length": str(len(body))})
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        self._leave(request, reset=fault.name is FaultName.RESET)
        return response

    async def health(self, request: web.Request) -> web.StreamResponse:
        """What a health check gets: nothing, a reset, or the fault's status (503 where it has none)."""
        fault = self.fault
        if fault is not None and fault.name in _STALLING:
            await asyncio.Event().wait()
        if fault is not None and fault.name in (FaultName.RESET, FaultName.CUT):
            return self._leave(request, reset=fault.name is FaultName.RESET)
        return web.Response(status=fault.status if fault is not None and fault.name is FaultName.FAIL else 503)

    async def _garbage(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        self.struck = True
        if fault.form == "html":
            return web.Response(body=_HTML, content_type="text/html")
        try:
            streams = json.loads(await request.read()).get("stream") is True
        except (ValueError, AttributeError):
            streams = False
        if streams:
            return web.Response(body=b"data: " + _BROKEN_JSON + b"\n\n", content_type="text/event-stream")
        return web.Response(body=_BROKEN_JSON, content_type="application/json")

    def _leave(self, request: web.Request, *, reset: bool) -> web.StreamResponse:
        """Close the connection under the answer; the response is never sent."""
        self.struck = True
        transport = request.transport
        if transport is not None and reset:
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        elif transport is not None:
            transport.close()
        return web.Response()


def _error_event(fault: Fault) -> bytes:
    error = {"message": fault.message, "type": fault.type, "param": None, "code": fault.status}
    return json.dumps({"error": error}).encode()
