"""The data path: what OpenAI clients call to get answers, models and their place in the queue."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final

import msgspec
import structlog

from headrace.core.naming import caught
from headrace.errors import Fault, HeadraceError, invalid_request, model_not_found
from headrace.model import AnswerForm, Ending, Flow, Request
from headrace.runtime.answer_head import AnswerHead
from headrace.runtime.sharing import scope_key
from headrace.runtime.tallies import Times
from headrace.server.answers import AnswerWriter
from headrace.server.exchange import Exchange, Handler
from headrace.server.identity import deadline_of, flow_of, new_id, request_id_of
from headrace.server.overhead import note_overhead
from headrace.server.ports import GatewayPort
from headrace.server.refusals import answer_json, refuse, refuse_early
from headrace.server.settings import ServerSettings
from headrace.server.waiting import WaitingRoom
from headrace.wire.openai import OpenAICall, fingerprint, model_body, models_body, parse
from headrace.wire.prompt_prefix import BLOCK_TOKENS, prefix_of, session_prefix

# To name a member of an enumeration costs ten times what a name of the module does.
_STREAM: Final = AnswerForm.STREAM
_WHOLE: Final = AnswerForm.WHOLE
_ANSWERED: Final = Ending.ANSWERED


class DataPath:
    """Handlers of `/v1`.

    `clock` is the scheduler's in seconds, the running loop's when None, as for the gateway; `wall` is Unix time;
    `overhead` counts what the process itself takes for each request.
    """

    def __init__(
        self,
        gateway: GatewayPort,
        settings: ServerSettings,
        clock: Callable[[], float] | None = None,
        wall: Callable[[], float] = time.time,
        overhead: Times | None = None,
    ) -> None:
        self._gateway = gateway
        self._overhead = overhead
        self._settings = settings
        self._clock = clock or self._first_look
        self._wall = wall
        self._created = int(wall())
        self._open: set[str] = set()
        self._salt = secrets.token_bytes(16)
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("headrace.server").bind()
        self._room = WaitingRoom(gateway.places, settings.queue_note_after, settings.queue_note_every)

    def answering(self, endpoint: str) -> Handler:
        """The handler for `chat`, `completions` or `embeddings`."""

        return partial(self._answer, endpoint)

    def models(self, exchange: Exchange) -> None:
        """`GET /v1/models`: the operator's own names, and those the instances serve; patterns cannot be listed."""
        names = [name for name in self._names() if "*" not in name]
        answer_json(exchange, 200, models_body(names, self._created))

    def model(self, exchange: Exchange) -> None:
        """`GET /v1/models/{id}`: whether a request for that name would be served."""
        asked = exchange.params.get("id", "")
        if asked and any(caught(name, asked) is not None for name in self._names()):
            answer_json(exchange, 200, model_body(asked, self._created))
        else:
            refuse_early(exchange, model_not_found(asked))

    def queue(self, exchange: Exchange) -> None:
        """`GET /v1/queue/me`: the caller's own waiting requests and their places, from 1."""
        try:
            flow = flow_of(exchange)
        except HeadraceError as error:
            refuse_early(exchange, error.fault)
            return
        waiting = [
            {"id": request_id, "position": position, "expected_start_seconds": round(seconds, 3)}
            for request_id, position, seconds in self._gateway.positions(flow)
        ]
        body = msgspec.json.encode({"object": "list", "user": flow.user, "data": waiting})
        answer_json(exchange, 200, body, [("cache-control", "no-store")])

    def cancel(self, exchange: Exchange) -> None:
        """`DELETE /v1/queue/{id}`: end one of the caller's own requests, whether it waits or runs."""
        request_id = exchange.params.get("id", "")
        try:
            found = self._gateway.cancel(request_id, flow_of(exchange))
        except HeadraceError as error:
            refuse_early(exchange, error.fault)
            return
        if found:
            answer_json(exchange, 200, msgspec.json.encode({"id": request_id, "object": "request", "cancelled": True}))
        else:
            refuse_early(
                exchange, invalid_request("None of your requests with this id is waiting or running.", status=404)
            )

    def _answer(self, endpoint: str, exchange: Exchange) -> None:
        began, arrived = perf_counter(), self._clock()
        request_id = request_id_of(exchange)
        if request_id in self._open:
            request_id = new_id()
        try:
            call = parse(endpoint, exchange.body)
            request = self._request(request_id, exchange, call, arrived)
        except HeadraceError as error:
            refuse(exchange, error.fault, [("x-request-id", request_id)])
            self._log_refusal(request_id, error.fault, arrived)
            return
        writer = AnswerWriter(exchange, call, request, self._settings.answer_limit, arrived, self._closed)
        reply = self._gateway.open(request, writer)
        if writer.over:
            return
        self._open.add(request_id)
        writer.reply, writer.taken = reply, perf_counter() - began
        exchange.on_disconnect = writer.leave
        exchange.on_drain = reply.resume
        if call.stream and exchange.headers.get(b"x-headrace-keepalive", b"").strip().lower() != b"off":
            self._room.enter(request_id, writer)

    def _closed(self, writer: AnswerWriter) -> None:
        """A request is over."""
        request_id, head, reply = writer.request.id, writer.head, writer.reply
        self._open.discard(request_id)
        self._room.leave(request_id)
        if self._overhead is not None and reply is not None and head is not None and writer.ending is _ANSWERED:
            note_overhead(self._overhead, writer.taken, reply, head)
        if self._log.is_enabled_for(logging.INFO):
            self._log_end(writer, head)

    def _request(self, request_id: str, exchange: Exchange, call: OpenAICall, now: float) -> Request:
        flow = flow_of(exchange, call.user, call.priority)
        shared, look_up, remember = self._sharing(exchange, call)
        prefix, block = self._prefix(call, flow)
        return Request(
            id=request_id,
            flow=flow,
            model=call.model,
            endpoint=call.endpoint,
            prompt_tokens=call.prompt_tokens,
            output_cap=call.output_cap,
            form=_STREAM if call.stream else _WHOLE,
            deadline=deadline_of(exchange, call.stream, now, self._wall()),
            fingerprint=fingerprint(call, scope_key(self._settings.dedup_scope, flow)) if shared else None,
            look_up=look_up,
            remember=remember,
            prefix=prefix,
            prefix_block=block,
            payload=call,
        )

    def _prefix(self, call: OpenAICall, flow: Flow) -> tuple[tuple[int, ...], int]:
        """The prompt's chain and the tokens of its blocks, where it can matter; a short prompt goes by its session."""
        if call.endpoint == "embeddings" or not self._gateway.weighs_prefix(call.model):
            return (), 0
        chain = prefix_of(call, flow.tenant, self._salt)
        if chain:
            return chain, BLOCK_TOKENS
        if flow.session:
            return session_prefix(flow.tenant, flow.user, flow.session, self._salt), call.prompt_tokens
        return (), 0

    def _sharing(self, exchange: Exchange, call: OpenAICall) -> tuple[bool, bool, bool]:
        """Whether the call may be shared, answered from the cache, and kept in it (RFC 9111, 5.2.1).

        `no-cache` wants a fresh answer: it may still be kept, and shared with others who ask at this moment. `no-store`
        wants no trace: it is neither.
        """
        if self._settings.dedup == "off":
            return False, False, False
        control = exchange.headers.get(b"cache-control")
        directives = {part.strip().lower() for part in control.split(b",")} if control else set[bytes]()
        if b"no-store" in directives:
            return False, False, False
        keeps = self._settings.dedup == "full" and call.deterministic
        return True, keeps and b"no-cache" not in directives, keeps

    def _first_look(self) -> float:
        """The running loop's clock, looked up once."""
        self._clock = asyncio.get_running_loop().time
        return self._clock()

    def _names(self) -> list[str]:
        """Names and patterns, each once: the operator's own first, then those of the instances in their order."""
        snapshot = self._gateway.snapshot()
        served = (name for instance in snapshot.instances for name in instance.models)
        return list(dict.fromkeys((*snapshot.names, *served)))

    def _log_refusal(self, request_id: str, fault: Fault, arrived: float) -> None:
        milliseconds = round((self._clock() - arrived) * 1000, 1)
        self._log.info("request", id=request_id, status=fault.status, code=fault.code, ms=milliseconds)

    def _log_end(self, writer: AnswerWriter, head: AnswerHead | None) -> None:
        request = writer.request
        instance, attempts = None if head is None else head.instance, writer.attempts
        if writer.reply is not None and writer.reply.went_on is not None:
            instance, last = writer.reply.went_on
            attempts = max(attempts, last)
        self._log.info(
            "request",
            id=request.id,
            model=request.model,
            user=request.flow.user,
            service_class=request.flow.service_class.value,
            ending=writer.ending.value,
            status=writer.status,
            code=writer.code,
            ms=round((self._clock() - writer.arrived) * 1000, 1),
            instance=instance,
            attempts=attempts,
        )
