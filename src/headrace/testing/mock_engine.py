"""An HTTP engine that behaves like a continuous-batching server, with faults to inject.

    async with MockEngine(model="m", slots=4, prefill_tps=4000, decode_tps=50, speed=10) as engine:
        ...                                                    # point the code under test at engine.url
        engine.inject("fail", status=503, count=3)
        await engine.until(lambda stats: stats.cancelled == 1)

Time is the running loop's, see `timing` for what takes how long. A client that disconnects frees its slot or its place
in the queue at once. Paths: `/v1/chat/completions`, `/v1/completions`, `/v1/embeddings`, `/v1/models`, `/health`,
`/metrics`, and `/admin/faults` (POST, GET, DELETE), `/admin/stats`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, Unpack

from aiohttp import web

from headrace.testing import answers, faults
from headrace.testing.answers import Asked, Refused, Rendering
from headrace.testing.faults import Fault, FaultBox, Scope
from headrace.testing.load import Job, Load, MockStats
from headrace.testing.misbehaviour import Misbehaviour
from headrace.testing.timing import QueueFull, Timing, TimingNumbers, TooLong
from headrace.testing.vllm_metrics import CONTENT_TYPE, VllmMetrics

_BODY_LIMIT = 64 * 1024 * 1024
_BACKLOG = 2048
"""Connections the kernel holds until they are accepted: a burst is for the queue to refuse, not for it."""


class MockEngine:
    """The engine. Enter it as an async context manager, or `start` and `stop` it; then `url` is where it listens.

    `eos_after`: length in tokens at which answers end by themselves (None: at the request's limit, else after 16).
    `api_key`: needed as a bearer token under `/v1` when given. `port` 0 picks a free one. The further arguments are the
    numbers of `timing.Timing` (`slots`, `queue`, `prefill_tps`, `decode_tps`, `speed`, ...); ValueError when they make
    no sense.
    """

    def __init__(
        self,
        *,
        model: str = "mock",
        host: str = "127.0.0.1",
        port: int = 0,
        eos_after: int | None = None,
        api_key: str | None = None,
        **timing: Unpack[TimingNumbers],
    ) -> None:
        self.model = model
        self.faults = FaultBox()
        self._host, self._port = host, port
        self._timing = Timing(**timing)
        self._eos_after = eos_after
        self._api_key = api_key
        self._metrics = VllmMetrics(model)
        self._load: Load | None = None
        self._runner: web.AppRunner | None = None
        self._answer_numbers = 0

    # -- for tests

    @property
    def url(self) -> str:
        """`http://<host>:<port>`."""
        return f"http://{self._host}:{self._port}"

    @property
    def stats(self) -> MockStats:
        """What it has seen, at this moment."""
        return self._running_load.stats

    def inject(self, name: str, **fields: object) -> None:
        """Arm a fault as `POST /admin/faults` does; raises ValueError."""
        self.faults.add(faults.from_json({"fault": name, **fields}), asyncio.get_running_loop().time())

    async def until(self, condition: Callable[[MockStats], bool], within: float = 120.0) -> None:
        """Wait until the stats satisfy `condition`; raises `GuardExpired` after `within` seconds."""
        await self._running_load.until(condition, within)

    @property
    def _running_load(self) -> Load:
        if self._load is None:
            raise RuntimeError("the mock engine has not been started")
        return self._load

    # -- life

    async def start(self) -> None:
        """Listen; raises OSError when the port is taken."""
        self._load = Load(self._timing, self._metrics)
        app = web.Application(client_max_size=_BODY_LIMIT)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_post("/v1/embeddings", self._embeddings)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics_text)
        app.router.add_post("/admin/faults", self._add_faults)
        app.router.add_get("/admin/faults", self._list_faults)
        app.router.add_delete("/admin/faults", self._clear_faults)
        app.router.add_get("/admin/stats", self._show_stats)
        # A handler is cancelled when its client leaves: that is what frees its slot at once.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, backlog=_BACKLOG)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening and cut what is still running."""
        if self._load is not None:
            self._load.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- answers

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._guarded(request, lambda: self._complete(request, chat=True))

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._guarded(request, lambda: self._complete(request, chat=False))

    async def _embeddings(self, request: web.Request) -> web.StreamResponse:
        return await self._guarded(request, lambda: self._embed(request))

    async def _guarded(
        self, request: web.Request, answer: Callable[[], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Count the request, and turn what refuses it into vLLM's error bodies."""
        load = self._running_load
        load.seen += 1
        load.changes.notify()
        try:
            self._check_key(request)
            return await answer()
        except Refused as error:
            refusal = error
        except TooLong as error:
            refusal = Refused(400, f"This model's context is too short: {error}.")
        except QueueFull as error:
            refusal = Refused(503, f"The engine is overloaded: {error}.")
        except asyncio.CancelledError:
            self._left()
            raise
        except ConnectionError:
            self._left()
            # Goes nowhere: raising would make the server log a client's leaving as its own mistake.
            return web.Response()
        load.refused += 1
        load.changes.notify()
        return web.Response(status=refusal.status, body=refusal.body, content_type="application/json")

    def _left(self) -> None:
        self._running_load.cancelled += 1
        self._running_load.changes.notify()

    async def _complete(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        body = await request.read()
        misbehaviour = self._misbehaviour(request)
        refusal = await misbehaviour.instead(request)
        if refusal is not None:
            return refusal
        asked = answers.read_completion(body, chat=chat, model=self.model, eos_after=self._eos_after)
        self._answer_numbers += 1
        number = f"{'chatcmpl' if chat else 'cmpl'}-mock-{self._answer_numbers}"
        request_id = request.headers.get("x-request-id", number)
        load = self._running_load
        job = load.enter(
            request_id,
            asked.prompt_tokens,
            asked.output,
            priority=asked.priority,
            stall_after=misbehaviour.stall_after,
            stall=misbehaviour.stall,
        )
        try:
            rendering = Rendering(asked, number, int(time.time()))
            deliver = self._stream if asked.stream else self._whole
            response = await deliver(request, job, rendering, misbehaviour)
        finally:
            load.leave(job)
        if not misbehaviour.struck:
            self._answered(asked)
        return response

    def _answered(self, asked: Asked) -> None:
        self._running_load.finished += 1
        self._metrics.answered(asked.finish_reason)
        self._running_load.changes.notify()

    async def _stream(
        self, request: web.Request, job: Job, rendering: Rendering, misbehaviour: Misbehaviour
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"x-request-id": job.request_id})
        response.content_type = "text/event-stream"
        response.charset = "utf-8"
        await response.prepare(request)
        opening = rendering.role()
        last = False
        while not last and not await misbehaviour.strikes(request, response, at_chunk=True):
            token = await job.next_token()
            await response.write(opening + rendering.piece(token.number))
            opening, last = b"", token.last
            misbehaviour.sent += 1
        if not await misbehaviour.strikes(request, response, at_chunk=False):
            await response.write(rendering.closing())
        return response

    async def _whole(
        self, request: web.Request, job: Job, rendering: Rendering, misbehaviour: Misbehaviour
    ) -> web.StreamResponse:
        await job.complete()
        body = rendering.whole()
        broken = await misbehaviour.whole(request, body)
        if broken is not None:
            return broken
        headers = {"x-request-id": job.request_id}
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _embed(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        refusal = await self._misbehaviour(request).instead(request)
        if refusal is not None:
            return refusal
        asked = answers.read_embeddings(body, self.model)
        load = self._running_load
        job = load.enter(request.headers.get("x-request-id", "embeddings"), asked.prompt_tokens, 0)
        try:
            await job.complete()
        finally:
            load.leave(job)
        load.finished += 1
        load.changes.notify()
        return web.Response(body=answers.vectors_body(asked), content_type="application/json")

    def _misbehaviour(self, request: web.Request) -> Misbehaviour:
        now = asyncio.get_running_loop().time()
        header = request.headers.get(faults.HEADER)
        try:
            fault = faults.from_header(header) if header else self.faults.take(Scope.INFERENCE, now)
        except ValueError as error:
            raise Refused(400, f"{faults.HEADER}: {error}") from None
        if fault is not None:
            self._running_load.faulted += 1
        return Misbehaviour(fault)

    def _check_key(self, request: web.Request) -> None:
        if self._api_key is not None and request.headers.get("authorization") != f"Bearer {self._api_key}":
            raise Refused(401, "Unauthorized")

    # -- about itself

    async def _models(self, request: web.Request) -> web.StreamResponse:
        try:
            self._check_key(request)
        except Refused as error:
            return web.Response(status=error.status, body=error.body, content_type="application/json")
        entry = {"id": self.model, "object": "model", "created": 0, "owned_by": "vllm", "root": self.model}
        entry["max_model_len"] = self._timing.kv_tokens
        return web.json_response({"object": "list", "data": [entry]})

    async def _health(self, request: web.Request) -> web.StreamResponse:
        fault = self.faults.take(Scope.HEALTH, asyncio.get_running_loop().time())
        if fault is None:
            return web.Response()
        return await Misbehaviour(fault).health(request)

    async def _metrics_text(self, _: web.Request) -> web.StreamResponse:
        load = self._running_load
        stats = load.stats
        text = self._metrics.text(stats.running, stats.waiting, load.kv_use)
        return web.Response(body=text, headers={"content-type": CONTENT_TYPE})

    async def _add_faults(self, request: web.Request) -> web.StreamResponse:
        now = asyncio.get_running_loop().time()
        try:
            for fault in _faults_in(await request.read()):
                self.faults.add(fault, now)
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from None
        return await self._list_faults(request)

    async def _list_faults(self, _: web.Request) -> web.StreamResponse:
        armed = self.faults.armed(asyncio.get_running_loop().time())
        return web.json_response({"faults": [fault.to_json() for fault in armed]})

    async def _clear_faults(self, request: web.Request) -> web.StreamResponse:
        self.faults.clear()
        return await self._list_faults(request)

    async def _show_stats(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(self.stats.to_json())


def _faults_in(body: bytes) -> list[Fault]:
    """The faults in an admin call's body, an object or a list of them; raises ValueError before any is armed."""
    given: object = json.loads(body)
    found: list[Fault] = []
    for entry in given if isinstance(given, list) else [given]:
        if not isinstance(entry, dict):
            raise ValueError("expected an object or a list of objects")  # noqa: TRY004 - wrong data, not a wrong call
        found.append(faults.from_json({str(key): value for key, value in entry.items()}))
    return found
