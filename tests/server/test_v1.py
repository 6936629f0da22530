"""The data path: what reaches the gateway, and what is refused on the way."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pytest
from structlog.testing import capture_logs

from headrace import errors
from headrace.model import AnswerForm, Ending, Flow, ServiceClass
from headrace.runtime.sharing import DedupMode, DedupScope
from headrace.server.settings import ServerSettings
from headrace.wire.openai import OpenAICall
from tests.server.fakes import CHAT, WHOLE, FakeGateway, FakeReply, front_door, instance_view

COLD = {**CHAT, "temperature": 0}


async def ask(
    body: Mapping[str, object],
    headers: Mapping[str, str] | None = None,
    settings: ServerSettings | None = None,
    path: str = "/v1/chat/completions",
) -> FakeReply:
    """What arrives at the gateway for one request."""
    gateway = FakeGateway()
    async with front_door(gateway, settings) as front, front.client() as client:
        client.post(path, body, headers)
        return await gateway.arrived()


async def test_the_request_carries_what_deciding_needs() -> None:
    """Model, form, size, cap, flow and the call itself."""
    headers = {"x-headrace-user": "alice", "x-headrace-class": "batch", "x-session-id": "s", "x-request-id": "r-1"}
    request = (await ask({**CHAT, "max_tokens": 7, "stream": True}, headers)).request
    assert request.id == "r-1"
    assert request.flow == Flow(ServiceClass.BATCH, "default", "alice", "s")
    assert (request.model, request.endpoint, request.form) == ("m", "chat", AnswerForm.STREAM)
    assert request.output_cap == 7
    assert request.prompt_tokens >= 1
    assert isinstance(request.payload, OpenAICall)
    assert json.loads(request.payload.body) == {**CHAT, "max_tokens": 7, "stream": True}


async def test_the_body_names_the_user_when_no_header_does() -> None:
    """OpenAI's own `user` field."""
    assert (await ask({**CHAT, "user": "carol"})).request.flow.user == "carol"


@pytest.mark.parametrize(
    ("path", "body", "endpoint"),
    [
        ("/v1/chat/completions", CHAT, "chat"),
        ("/chat/completions", CHAT, "chat"),
        ("/v1/completions", {"model": "m", "prompt": "x"}, "completions"),
        ("/completions", {"model": "m", "prompt": "x"}, "completions"),
        ("/v1/embeddings", {"model": "m", "input": "x"}, "embeddings"),
        ("/embeddings", {"model": "m", "input": "x"}, "embeddings"),
    ],
)
async def test_each_endpoint_is_served_with_and_without_its_version(
    path: str, body: dict[str, object], endpoint: str
) -> None:
    """Base URLs are written both ways."""
    assert (await ask(body, path=path)).request.endpoint == endpoint


@pytest.mark.parametrize(
    ("mode", "body", "control", "expected"),
    [
        ("off", COLD, None, (False, False, False)),
        ("in_flight", CHAT, None, (True, False, False)),
        ("in_flight", COLD, None, (True, False, False)),
        ("full", CHAT, None, (True, False, False)),
        ("full", COLD, None, (True, True, True)),
        ("full", COLD, "no-cache", (True, False, True)),
        ("full", COLD, "max-age=0, No-Store", (False, False, False)),
        ("in_flight", CHAT, "no-store", (False, False, False)),
    ],
)
async def test_sharing_follows_mode_temperature_and_cache_control(
    mode: DedupMode, body: dict[str, object], control: str | None, expected: tuple[bool, bool, bool]
) -> None:
    """(shared in flight, answered from the cache, kept in it); no temperature is not temperature 0."""
    headers = {} if control is None else {"cache-control": control}
    request = (await ask(body, headers, ServerSettings(dedup=mode))).request
    assert (request.fingerprint is not None, request.look_up, request.remember) == expected


@pytest.mark.parametrize(
    ("scope", "shares"),
    [("global", True), ("tenant", True), ("user", False), ("session", False)],
)
async def test_the_scope_keeps_answers_apart(scope: DedupScope, shares: bool) -> None:
    """Two users of a tenant share an answer only where the scope says so."""
    settings = ServerSettings(dedup_scope=scope)
    one = await ask(CHAT, {"x-headrace-user": "alice"}, settings)
    two = await ask(CHAT, {"x-headrace-user": "bob"}, settings)
    assert (one.request.fingerprint == two.request.fingerprint) is shares


async def test_a_request_id_in_use_is_not_used_twice() -> None:
    """A client that sends an id again while the first request runs gets another; afterwards it may have it."""
    gateway = FakeGateway()
    headers = {"x-request-id": "same"}
    async with front_door(gateway) as front, front.client() as one, front.client() as two:
        one.post("/v1/chat/completions", CHAT, headers)
        first = await gateway.arrived(1)
        two.post("/v1/chat/completions", CHAT, headers)
        second = await gateway.arrived(2)
        assert first.request.id == "same"
        assert re.fullmatch(r"req-[0-9a-f]{24}", second.request.id)
        for reply, client in ((first, one), (second, two)):
            reply.end(Ending.NO_INSTANCE, errors.no_instance(1.0))
            assert (await client.answer()).headers["x-request-id"] == reply.request.id
        one.post("/v1/chat/completions", CHAT, headers)
        assert (await gateway.arrived(3)).request.id == "same"


@pytest.mark.parametrize("header", ["x-headrace-class", "x-headrace-deadline"])
async def test_a_wrong_header_is_400_and_named(header: str) -> None:
    """The caller is told which header it is; nothing reaches the gateway."""
    gateway = FakeGateway()
    async with front_door(gateway) as front, front.client() as client:
        client.post("/v1/chat/completions", CHAT, {header: "nonsense", "x-request-id": "r-2"})
        answer = await client.answer()
        assert (answer.status, answer.error["param"]) == (400, header)
        assert answer.headers["x-request-id"] == "r-2"
        assert not gateway.replies


async def test_models_are_listed_once_and_patterns_not_at_all() -> None:
    """Names of all instances in order, also of one that is down at the moment."""
    instances = (
        instance_view("a", models=("org/m:7b", "m")),
        instance_view("b", healthy=False, models=("m", "n", "gw/*")),
    )
    async with front_door(FakeGateway(instances=instances)) as front, front.client() as client:
        for path in ("/v1/models", "/models"):
            answer = await client.get(path)
            listed = json.loads(answer.body)
            assert answer.status == 200
            assert [model["id"] for model in listed["data"]] == ["org/m:7b", "m", "n"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/models/org/m:7b", "org/m:7b"),
        ("/v1/models/org%2Fm%3A7b", "org/m:7b"),
        ("/models/m", "m"),
        ("/v1/models/gw/any-chat", "gw/any-chat"),
        ("/v1/models/v1.5/x", "v1.5/x"),
    ],
)
async def test_a_model_is_found_by_name_encoded_or_not(path: str, name: str) -> None:
    """Slashes and colons in names are no obstacle, and patterns count."""
    instances = (instance_view(models=("org/m:7b", "m", "gw/*-chat", "v1.5/*")),)
    async with front_door(FakeGateway(instances=instances)) as front, front.client() as client:
        answer = await client.get(path)
        assert (answer.status, json.loads(answer.body)["id"]) == (200, name)


@pytest.mark.parametrize("name", ["nope", "gw/chat", "gw/any", "v1x5/a", "", "a%00b", "..%2fm", "M"])
async def test_an_unknown_model_is_404_in_the_apis_form(name: str) -> None:
    """A dot is a dot, case counts, and nothing odd is served by accident."""
    instances = (instance_view(models=("m", "gw/*-chat", "v1.5/*")),)
    async with front_door(FakeGateway(instances=instances)) as front, front.client() as client:
        answer = await client.get(f"/v1/models/{name}")
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")


async def test_callers_see_their_own_place_in_the_queue() -> None:
    """Only the asking user's requests, with position and expected start."""
    gateway = FakeGateway(waiting={Flow(user="alice"): [("r-1", 3, 1.23456)]})
    async with front_door(gateway) as front, front.client() as client:
        answer = await client.get("/v1/queue/me", {"x-headrace-user": "alice"})
        assert json.loads(answer.body)["data"] == [{"id": "r-1", "position": 3, "expected_start_seconds": 1.235}]
        answer = await client.get("/queue/me", {"x-headrace-user": "bob"})
        assert json.loads(answer.body)["data"] == []


async def test_each_request_is_one_line_in_the_log_without_its_text() -> None:
    """Who, what, how it ended and how long it took; never a prompt or an answer."""
    gateway = FakeGateway()
    marked = {"model": "m", "messages": [{"role": "user", "content": "MARKER"}]}
    with capture_logs() as lines:
        async with front_door(gateway) as front, front.client() as client:
            client.post("/v1/chat/completions", marked, {"x-request-id": "r-1", "x-headrace-user": "alice"})
            reply = await gateway.arrived()
            reply.begin(AnswerForm.WHOLE)
            reply.write(WHOLE)
            reply.end()
            await client.answer()
            client.post("/v1/chat/completions", marked, {"x-request-id": "r-3"})
            (await gateway.arrived(2)).end(Ending.INFERENCE_FAILURE, errors.upstream_auth())
            await client.answer()
            client.post("/v1/chat/completions", marked, {"x-request-id": "r-2"})
            reply = await gateway.arrived(3)
            client.leave()
            await gateway.until_cancelled(reply)
    first, failed, second = [line for line in lines if line["event"] == "request"]
    assert (
        first.items()
        >= {
            "id": "r-1",
            "model": "m",
            "user": "alice",
            "service_class": "normal",
            "ending": "answered",
            "status": 200,
            "instance": "gpu-1",
            "attempts": 2,
            "log_level": "info",
        }.items()
    )
    assert first["ms"] >= 0
    assert (second["ending"], second["status"]) == ("cancelled", 499)
    assert [line["code"] for line in (first, failed, second)] == [None, "upstream_auth", None]
    assert "MARKER" not in repr(lines)
    assert "hello back" not in repr(lines)


LONG = {"model": "m", "messages": [{"role": "user", "content": "once upon a time " * 200}]}


Asked = tuple[Mapping[str, object], Mapping[str, str]]


async def prefixes(*asked: Asked, several: tuple[str, ...]) -> list[FakeReply]:
    """The replies to requests that one server got, one after the other; `several` instances serve these models."""
    gateway = FakeGateway(several=several)
    async with front_door(gateway) as front, front.client() as client:
        for number, (body, headers) in enumerate(asked, 1):
            client.post("/v1/chat/completions", body, headers)
            reply = await gateway.arrived(number)
            reply.end(Ending.INFERENCE_FAILURE, errors.upstream_error())
            await client.answer()
    return gateway.replies


async def test_a_prompts_beginning_is_told_where_there_is_a_choice() -> None:
    """The same for the same prompt; none where one instance serves the model, or the prompt is short."""
    asked: tuple[Asked, ...] = ((LONG, {}), (LONG, {"x-headrace-user": "alice"}), (CHAT, {}))
    first, second, short = (reply.request for reply in await prefixes(*asked, several=("m",)))
    assert first.prefix == second.prefix
    assert len(first.prefix) * first.prefix_block <= first.prompt_tokens
    assert len(first.prefix) >= 6
    assert (short.prefix, short.prefix_block) == ((), 0)
    (alone,) = await prefixes((LONG, {}), several=("other",))
    assert alone.request.prefix == ()


async def test_a_session_holds_short_prompts_together() -> None:
    """Without enough text the conversation's name stands for it; another user's of the same name is another."""
    named, alice = {"x-session-id": "s"}, {"x-headrace-user": "alice"}
    asked: tuple[Asked, ...] = ((CHAT, named), (CHAT, {**named, **alice}), (CHAT, named), (LONG, named), (LONG, {}))
    one, other, again, long, bare = (reply.request for reply in await prefixes(*asked, several=("m",)))
    assert len(one.prefix) == 1
    assert one.prefix == again.prefix != other.prefix
    assert one.prefix_block == one.prompt_tokens
    assert long.prefix == bare.prefix
