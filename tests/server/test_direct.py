"""The direct lane, driven by hand on virtual time: how often it writes, and what it does when nobody moves."""

from __future__ import annotations

import asyncio
import json
import tracemalloc

import uvicorn
from prometheus_client import CollectorRegistry
from uvicorn.server import ServerState

from headrace.model import AnswerForm
from headrace.server.app import build_app
from headrace.server.connection import HEAD_LIMIT, HEAD_TIMEOUT
from headrace.server.connections import Connections
from headrace.server.intake import LINGER
from headrace.server.settings import ServerSettings
from headrace.testing import on_virtual_time
from headrace.wire.openai import OpenAICall
from tests.server.fakes import CHAT, DONE, WHOLE, FakeGateway, chunk

KEEP_ALIVE = 75


class Wire(asyncio.Transport):
    """A transport that keeps what is written; the test says when the peer takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.held = 0
        self.ended = ""
        self.half = False
        """It was told that nothing more is written."""

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.held

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.half = True

    def pause_reading(self) -> None:
        assert not self.ended, "a transport that closes can do nothing any more"

    def resume_reading(self) -> None:
        pass


class Caller:
    """One connection to a gateway that does what the test says."""

    def __init__(self, **settings: float) -> None:
        self.gateway = FakeGateway()
        self.wire = Wire()
        app = build_app(self.gateway, ServerSettings(**settings), CollectorRegistry())  # type: ignore[arg-type]
        self.intake = app.intake
        config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None)
        self.http = Connections(app, KEEP_ALIVE)(config, ServerState())
        self.http.connection_made(self.wire)

    def post(self, **fields: object) -> None:
        body = json.dumps({**CHAT, **fields}).encode()
        self.http.data_received(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


async def passes(seconds: float = 0.0) -> None:
    """Virtual time passes."""
    loop = asyncio.get_running_loop()
    later = loop.create_future()
    loop.call_later(seconds, later.set_result, None)
    await later


@on_virtual_time
async def test_a_whole_answer_is_one_write() -> None:
    """Head and body leave together; the socket is asked once."""
    caller = Caller()
    caller.post()
    reply = caller.gateway.replies[0]
    reply.begin(AnswerForm.WHOLE)
    reply.write(WHOLE)
    reply.end()
    await passes()
    (written,) = caller.wire.written
    assert written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert written.endswith(b"\r\n\r\n" + WHOLE)


@on_virtual_time
async def test_a_turn_of_the_loop_is_one_write_of_a_stream() -> None:
    """The first with the head, the last with the end; a frame alone does not wait for another."""
    caller = Caller()
    caller.post(stream=True)
    reply = caller.gateway.replies[0]
    reply.begin()
    reply.write(b"a")
    reply.write(b"b")
    await passes()
    reply.write(b"c")
    await passes()
    reply.write(b"d")
    reply.end()
    await passes()
    first, *others = caller.wire.written
    assert first.endswith(b"\r\n\r\n2\r\nab\r\n")
    assert others == [b"1\r\nc\r\n", b"1\r\nd\r\n0\r\n\r\n"]


@on_virtual_time
async def test_what_was_sent_behind_the_last_request_is_let_go() -> None:
    """A request that says `connection: close` is the last one, whatever comes with it."""
    caller = Caller()
    last = b"POST /completions HTTP/1.1\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"
    caller.http.data_received(last + b"GET /live HTTP/1.1\r\n\r\n" + last)
    (written,) = caller.wire.written
    assert written.startswith(b"HTTP/1.1 400 ")
    assert caller.wire.ended == "closed"


@on_virtual_time
async def test_a_head_must_be_complete_in_time() -> None:
    """From the connection, and again from the first byte of each later head; other bytes do not prolong it."""
    caller = Caller()
    await passes(HEAD_TIMEOUT - 1)
    caller.http.data_received(b"GET /")
    assert not caller.wire.is_closing()
    await passes(1)
    assert caller.wire.ended == "aborted"

    caller = Caller()
    caller.post()
    caller.gateway.replies[0].end()
    await passes(50)
    caller.http.data_received(b"GET /")
    await passes(HEAD_TIMEOUT - 1)
    caller.http.data_received(b"live")
    assert not caller.wire.is_closing()
    await passes(1)
    assert caller.wire.ended == "aborted"


@on_virtual_time
async def test_an_idle_connection_is_closed_in_the_end() -> None:
    """Each request starts the time anew; a request under way, however long, is not idleness."""
    caller = Caller()
    for number in range(3):
        await passes(20 if number == 0 else KEEP_ALIVE - 1)
        caller.post()
        await passes(10 * KEEP_ALIVE)
        caller.gateway.replies[number].end()
    await passes(KEEP_ALIVE - 1)
    assert not caller.wire.is_closing()
    await passes(1)
    assert caller.wire.ended == "closed"


@on_virtual_time
async def test_a_body_must_be_complete_in_time() -> None:
    """408 when it is not, a moment to read it, and the end; its share of the bound is given back."""
    caller = Caller(body_timeout=10.0)
    caller.http.data_received(b"POST /completions HTTP/1.1\r\ncontent-length: 5000\r\n\r\n")
    await passes(9)
    caller.http.data_received(b"{")
    assert not caller.wire.written
    await passes(1)
    assert caller.wire.written[0].startswith(b"HTTP/1.1 408 ")
    assert b"\r\nconnection: close\r\n" in caller.wire.written[0]
    await passes(LINGER - 1)
    caller.http.data_received(b"more")
    assert not caller.wire.is_closing()
    await passes(1)
    assert caller.wire.ended == "closed"
    assert caller.intake.held == 0


@on_virtual_time
async def test_a_caller_that_takes_nothing_is_cut_off_and_one_that_takes_little_is_not() -> None:
    """What counts is that a byte was taken, not how many."""
    caller = Caller(stall_timeout=100.0)
    caller.post(stream=True)
    reply = caller.gateway.replies[0]
    reply.begin()
    caller.wire.held = 100_000
    caller.http.pause_writing()
    assert not reply.write(chunk("x"))
    for _ in range(5):
        await passes(90)
        assert not caller.wire.is_closing()
        caller.wire.held -= 1
    await passes(130)
    assert caller.wire.ended == "aborted"
    caller.http.connection_lost(None)
    assert reply.cancelled == 1


@on_virtual_time
async def test_room_is_announced_once_when_the_socket_takes_more() -> None:
    """`resume` comes when the transport says so, not before, and not twice."""
    caller = Caller()
    caller.post(stream=True)
    reply = caller.gateway.replies[0]
    reply.begin()
    caller.http.pause_writing()
    assert not reply.write(chunk("x"))
    assert not reply.write(chunk("y"))
    await passes(1)
    assert reply.resumed == 0
    caller.http.resume_writing()
    await passes(1)
    assert reply.resumed == 1
    assert reply.write(DONE)
    reply.end()


@on_virtual_time
async def test_bodies_count_until_they_are_answered() -> None:
    """The bound on the sum of bodies is given back at the answer's end and when the caller leaves."""
    caller, other = Caller(), Caller()
    for one in (caller, other):
        one.post()
        assert one.intake.held > 0
    caller.gateway.replies[0].end()
    other.http.connection_lost(None)
    for one in (caller, other):
        assert one.intake.held == 0
    assert other.gateway.replies[0].cancelled == 1


@on_virtual_time
async def test_who_takes_no_answers_gets_no_others() -> None:
    """What was sent ahead waits for the caller to read: answers do not pile up."""
    caller = Caller()
    caller.post()
    caller.post()
    caller.http.pause_writing()
    caller.gateway.replies[0].end()
    await passes(KEEP_ALIVE + 1)
    assert len(caller.gateway.replies) == 1
    assert not caller.wire.is_closing()
    caller.http.resume_writing()
    assert len(caller.gateway.replies) == 2


@on_virtual_time
async def test_a_closing_connection_that_takes_nothing_is_cut_off() -> None:
    """The last bytes may be few: a caller that does not take them is not kept for ever either."""
    caller = Caller(stall_timeout=100.0)
    caller.post()
    caller.wire.held = 100
    caller.gateway.replies[0].end()
    await passes(KEEP_ALIVE)
    assert caller.wire.ended == "closed"
    await passes(101)
    assert caller.wire.ended == "aborted"


@on_virtual_time
async def test_trailers_are_bounded() -> None:
    """What comes behind a chunked body is a head's size at most."""
    caller = Caller()
    caller.http.data_received(b"POST /completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nx: ")
    for _ in range(5):
        assert not caller.wire.is_closing()
        caller.http.data_received(b"x" * (HEAD_LIMIT // 4))
    assert caller.wire.half
    assert caller.wire.written[0].startswith(b"HTTP/1.1 431 ")


@on_virtual_time
async def test_who_goes_on_sending_after_a_refusal_is_listened_to_for_a_moment() -> None:
    """The end is said at once; what comes then is thrown away, requests and nonsense alike, and not for ever."""
    caller = Caller()
    caller.post()
    caller.http.data_received(b"FOO BAR\r\n\r\n")
    (written,) = caller.wire.written
    assert written.startswith(b"HTTP/1.1 400 ")
    assert caller.wire.half
    assert caller.gateway.replies[0].cancelled == 1
    caller.post()
    caller.http.data_received(b"FOO BAR\r\n\r\n" * 10_000)
    await passes(LINGER - 0.1)
    assert not caller.wire.is_closing()
    await passes(0.1)
    assert caller.wire.ended == "closed"
    assert (len(caller.wire.written), len(caller.gateway.replies)) == (1, 1)


@on_virtual_time
async def test_stopping_refuses_half_a_request_behind_the_answer_in_front_of_it() -> None:
    """The stream under way ends properly; who has not sent all of his request by then is not waited for."""
    caller = Caller()
    caller.post(stream=True)
    reply = caller.gateway.replies[0]
    reply.begin()
    caller.http.data_received(b"POST /completions HTTP/1.1\r\ncontent-length: 100\r\n\r\n{")
    caller.http.shutdown()
    reply.write(DONE)
    reply.end()
    stream, refusal = caller.wire.written
    assert stream.endswith(b"\r\n0\r\n\r\n")
    assert refusal.startswith(b"HTTP/1.1 503 ")
    assert caller.wire.half
    await passes(LINGER)
    assert caller.wire.ended == "closed"


@on_virtual_time
async def test_a_body_in_crumbs_takes_no_more_than_it_holds() -> None:
    """A caller cannot make a small body large by cutting it small; it is put together as it was."""
    caller = Caller()
    body = json.dumps({**CHAT, "user": "x" * 50_000}).encode()
    crumbs = b"".join([b"2\r\n%b\r\n" % body[at : at + 2] for at in range(0, len(body) // 2 * 2, 2)])
    odd = len(body) % 2
    rest = b"1\r\n%b\r\n" % body[-1:] if odd else b""
    tracemalloc.start()
    caller.http.data_received(b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + crumbs)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 3 * len(body)
    caller.http.data_received(rest + b"0\r\n\r\n")
    (request,) = [reply.request for reply in caller.gateway.replies]
    assert isinstance(request.payload, OpenAICall)
    assert request.payload.body == body
