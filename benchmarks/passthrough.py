"""The yardstick: a bare pass-through on aiohttp, with no policy at all.

`python -m benchmarks.passthrough PORT ENGINE_URL`
"""

from __future__ import annotations

import sys

import aiohttp
import uvloop
from aiohttp import web

LIMIT = 64 * 1024 * 1024


async def answer(request: web.Request) -> web.StreamResponse:
    session = request.app[SESSION]
    body = await request.read()
    headers = {"content-type": "application/json"}
    async with session.post(request.app[ENGINE] + request.path, data=body, headers=headers) as upstream:
        kind = upstream.headers.get("content-type", "application/json")
        if not kind.startswith("text/event-stream"):
            return web.Response(status=upstream.status, body=await upstream.read(), content_type=kind.split(";")[0])
        response = web.StreamResponse(status=upstream.status, headers={"content-type": kind})
        await response.prepare(request)
        async for data in upstream.content.iter_any():
            await response.write(data)
        await response.write_eof()
        return response


SESSION = web.AppKey("session", aiohttp.ClientSession)
ENGINE = web.AppKey("engine", str)


async def opened(app: web.Application) -> None:
    app[SESSION] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


if __name__ == "__main__":
    uvloop.install()
    application = web.Application(client_max_size=LIMIT)
    application[ENGINE] = sys.argv[2]
    application.on_startup.append(opened)
    application.router.add_post("/v1/chat/completions", answer)
    web.run_app(application, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
