"""The admin API on real sockets: who gets in, what is refused and how, what is shown and what never is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from headrace.build import Headrace, build
from headrace.config import Config
from headrace.server.settings import AdminSettings, ServerSettings
from tests.server.fakes import Answer, FakeGateway, Front, RawClient, front_door

KEY = "k-0123456789abcdef"
SECRET = "s3cr3t-of-an-engine"
ELSEWHERE = {"x-forwarded-for": "203.0.113.9"}
"""What a request has that came through a proxy."""

LOCKED = ServerSettings(admin=AdminSettings(key=KEY, key_variables=("*_API_KEY",)))
OPEN = ServerSettings(admin=AdminSettings(key_variables=("*_API_KEY",)), body_limit=100_000)


@asynccontextmanager
async def administered(settings: ServerSettings = OPEN, **sections: object) -> AsyncIterator[tuple[Headrace, Front]]:
    """A real gateway with one instance `a` that is not there, behind the front door of this test."""
    config = Config.model_validate(
        {
            "instances": [{"id": "a", "address": "http://127.0.0.1:9", "models": ["m"], "api_key_env": "A_API_KEY"}],
            "dead_letters": {"path": None},
            "health_check": {"interval_seconds": 86_400},
            **sections,
        }
    ).with_keys({"A_API_KEY": SECRET, "OTHER_API_KEY": SECRET})
    gateway = build(config, registry=CollectorRegistry(), random=Random(1))
    async with gateway, front_door(FakeGateway(administration=gateway), settings) as front:
        yield gateway, front


async def send(
    client: RawClient, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """One request from this machine, with a JSON body if there is one."""
    fields = {"host": "127.0.0.1", **(headers or {})}
    data = b"" if body is None else json.dumps(body).encode()
    if data:
        fields.setdefault("content-type", "application/json")
    client.send(method, path, fields, data)
    return await client.answer()


async def routes(client: RawClient, headers: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """Every method and path that the API's own document names, with names put into the places."""
    document = json.loads((await send(client, "GET", "/openapi.json", headers=headers)).body)
    return [
        (method.upper(), path.replace("{id}", "a"))
        for path, operations in document["paths"].items()
        for method in operations
    ]


# ------------------------------------------------------------------------------------------------------------ access


async def test_no_route_works_without_the_key() -> None:
    """Each route of the document, health checks' methods and all: 401 without it, and nothing has changed."""
    async with administered(LOCKED) as (gateway, front), front.client() as client:
        before = gateway.registry.instances
        known = await routes(client)
        assert len(known) >= 20
        for method, path in [*known, ("GET", "/admin"), ("GET", "/admin/nothing"), ("OPTIONS", "/admin/instances")]:
            answer = await send(client, method, path, {} if method in ("POST", "PATCH") else None)
            assert (answer.status, answer.error["code"]) == (401, "missing_api_key"), (method, path)
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert gateway.registry.instances == before
        for header in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
            assert (await send(client, "GET", "/admin/instances", headers=header)).status == 200
        wrong = await send(client, "GET", "/admin/instances", headers={"x-api-key": "caf\xe9"})
        assert (wrong.status, wrong.error["code"]) == (401, "invalid_api_key")


async def test_without_a_key_nothing_is_open_to_others() -> None:
    """Through a proxy each route is 403 and the answer says how to open it; the page and the document as well."""
    async with administered() as (_, front), front.client() as client:
        for method, path in [*await routes(client), ("GET", "/docs"), ("GET", "/openapi.json")]:
            answer = await send(client, method, path, {} if method in ("POST", "PATCH") else None, ELSEWHERE)
            assert (answer.status, answer.error["code"]) == (403, "admin_closed"), (method, path)
            assert "admin.api_key_env" in str(answer.error["message"])


async def test_a_page_from_elsewhere_changes_nothing() -> None:
    """A form that is posted across sites, and a name that was rebound to this machine, are refused before anything."""
    async with administered() as (gateway, front), front.client() as client:
        path = "/admin/instances/a/drain"
        for headers in ({"origin": "https://elsewhere.example"}, {"host": "rebound.example"}):
            assert (await send(client, "POST", path, headers=headers)).status == 403
        form = {"content-type": "text/plain"}
        assert (await send(client, "POST", "/admin/instances", {"address": "http://10.0.0.1"}, form)).status == 415
        assert [(entry.instance.id, entry.draining) for entry in gateway.registry.instances] == [("a", False)]
        assert (await send(client, "POST", path, headers={"origin": "http://127.0.0.1"})).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/health/%2e%2e/admin/instances",
        "//admin/instances",
        "/health/../admin/instances",
        "/health/..%2fadmin/instances",
        "/ADMIN/instances",
        "/admin%2finstances",
        "/admin;x/instances",
        "/health/admin/instances",
        "/docs/../admin/instances",
        "/docs/%2e%2e/admin/instances",
        "/docs/..%2fadmin%2finstances",
        "/openapi.json/../admin/instances",
        "/admin/instances%00",
        "/v1/models/../../admin/instances",
    ],
)
async def test_no_way_of_writing_a_path_leads_around_the_key(path: str) -> None:
    """What only looks like an open path, or like an admin path, is 401 or 404."""
    async with administered(LOCKED) as (_, front), front.client() as client:
        for method in ("GET", "POST", "HEAD"):
            client.send(method, path, {"host": "127.0.0.1", "x-http-method-override": "GET"})
            status, headers = await client.head()
            assert status in (401, 404, 405), method
            await client.reader.readexactly(0 if method == "HEAD" else int(headers["content-length"]))


async def test_the_page_needs_nothing_from_elsewhere() -> None:
    """It is shown without the key, which it asks for; all it loads lies here, and its policy forbids the rest."""
    async with administered(LOCKED) as (_, front), front.client() as client:
        page = await send(client, "GET", "/docs")
        assert page.status == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "http" not in page.body.decode().replace("http-equiv", "")
        for path in ("/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/docs/start.js", "/docs/favicon-32x32.png"):
            asset = await send(client, "GET", path)
            assert (asset.status, asset.headers["x-content-type-options"]) == (200, "nosniff")
            assert len(asset.body) > 100
        assert (await send(client, "GET", "/docs/other.js")).status == 404
        document = json.loads((await send(client, "GET", "/openapi.json")).body)
        assert document["security"] == [{"key": []}, {"bearer": []}]
        assert set(document["components"]["securitySchemes"]) == {"key", "bearer"}


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"address": "http://10.0.0.1", "modles": ["m"]}, 422, "modles"),
        ({"address": "http://10.0.0.1", "models": ["ok", ""]}, 422, "models[1]"),
        ({"address": "http://10.0.0.1", "capacity": -1}, 422, "capacity"),
        ({"address": "http://10.0.0.1", "max_concurrent": 0}, 422, "max_concurrent"),
        ({"address": "http://10.0.0.1", "engine": "nothing"}, 422, "engine"),
        ({"address": "http://10.0.0.1", "source": "config"}, 422, "source"),
        ({"address": "http://10.0.0.1", "id": "a b"}, 422, "id"),
        ({"address": "ftp://10.0.0.1"}, 422, "address"),
        ({"address": "http://user:pw@10.0.0.1"}, 422, "address"),
        ({}, 422, None),
        ([], 422, None),
        ({"address": "http://169.254.169.254"}, 400, "address"),
        ({"address": "http://[::ffff:a9fe:a9fe]"}, 400, "address"),
        ({"address": "http://2852039166"}, 400, "address"),
        ({"address": "http://metadata.google.internal"}, 400, "address"),
        ({"address": "http://10.0.0.1", "metrics": "http://169.254.169.254/metrics"}, 400, "metrics"),
        ({"address": "http://10.0.0.1", "api_key_env": "AWS_SECRET_ACCESS_KEY"}, 400, "api_key_env"),
        ({"address": "http://10.0.0.1", "api_key_env": "HEADRACE_ADMIN_API_KEY"}, 400, "api_key_env"),
        ({"address": "http://127.0.0.1:9", "models": ["m"]}, 409, None),
        ({"address": "http://LOCALHOST:80", "id": "a"}, 409, None),
    ],
)
async def test_what_cannot_be_registered_is_told_with_its_field(body: object, status: int, param: str | None) -> None:
    """In the one error shape, without the value; nothing is registered and nothing is connected to."""
    async with administered() as (gateway, front), front.client() as client:
        answer = await send(client, "POST", "/admin/instances", body)
        assert answer.status == status, answer.body
        assert param is None or answer.error["param"] == param
        assert "pw" not in str(answer.error["message"])
        assert [entry.instance.id for entry in gateway.registry.instances] == ["a"]


@pytest.mark.parametrize(
    ("data", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"\xff", {}, 400),
        (b"[" * 40_000, {}, 400),
        (b'{"capacity": ' + b"1" * 5_000 + b"}", {}, 400),
        (b"{}" + b" " * 100_000, {}, 413),
        (b"a=1", {"content-type": "application/x-www-form-urlencoded"}, 415),
        (b"a", {"content-encoding": "gzip"}, 415),
    ],
    ids=["cut", "no text", "deep", "long number", "large", "form", "packed"],
)
async def test_a_body_that_is_no_json_is_refused(data: bytes, headers: Mapping[str, str], status: int) -> None:
    """Whatever is wrong with it, the answer is an error of the caller in the one shape, and the next request works."""
    async with administered() as (_, front):
        async with front.client() as client:
            fields = {"host": "127.0.0.1", "content-type": "application/json", **headers}
            client.send("POST", "/admin/instances", fields, data)
            answer = await client.answer()
            assert answer.status == status
            assert answer.error["message"]
        async with front.client() as client:
            assert (await send(client, "GET", "/admin/instances")).status == 200


async def test_unknown_things_are_404_and_wrong_methods_405() -> None:
    """In the one shape, with what is possible."""
    async with administered() as (_, front), front.client() as client:
        for method, path in [
            ("GET", "/admin/instances/nobody"),
            ("PATCH", "/admin/instances/nobody"),
            ("DELETE", "/admin/instances/nobody"),
            ("POST", "/admin/instances/nobody/drain"),
            ("POST", "/admin/instances/nobody/undrain"),
            ("POST", "/admin/circuit-breakers/nobody/trip"),
            ("POST", "/admin/circuit-breakers/nobody/reset"),
            ("GET", "/admin/balancer/debug?model=nothing"),
            ("GET", "/admin/nothing"),
            ("GET", "/admin/instances/"),
        ]:
            answer = await send(client, method, path, {} if method == "PATCH" else None)
            assert (answer.status, bool(answer.error["message"])) == (404, True), (method, path)
        answer = await send(client, "PUT", "/admin/instances", {})
        assert (answer.status, answer.error["type"]) == (405, "invalid_request_error")
        assert answer.headers["allow"]


# ---------------------------------------------------------------------------------------------------------- instances


async def test_an_instance_is_registered_changed_and_removed() -> None:
    """What is answered is what is in force; keys that are left out of a change stay."""
    async with administered() as (gateway, front), front.client() as client:
        given = {
            "address": "HTTP://GPU.invalid:80/v1/",
            "engine": "vllm",
            "models": ["big", "small=big"],
            "tier": "remote",
        }
        answer = await send(client, "POST", "/admin/instances", given)
        assert answer.status == 201
        made = json.loads(answer.body)
        assert made["instance"]["id"] == "vllm-1"
        assert made["instance"]["address"] == "http://gpu.invalid"
        assert made["instance"]["models"] == ["big", "small=big"]
        assert made["instance"]["source"] == "admin"
        assert any("gpu.invalid" in word for word in made["warnings"])
        path = "/admin/instances/vllm-1"
        changed = json.loads((await send(client, "PATCH", path, {"max_concurrent": 3, "metadata": {"rack": "7"}})).body)
        assert changed["instance"] == {**made["instance"], "max_concurrent": 3, "limit": 3, "metadata": {"rack": "7"}}
        again = json.loads((await send(client, "PATCH", path, {"max_concurrent": "auto", "window_tokens": None})).body)
        assert (again["instance"]["max_concurrent"], again["instance"]["adaptive"]) == (256, True)
        assert again["instance"]["window_tokens"] is None
        assert json.loads((await send(client, "GET", path)).body)["instance"]["tier"] == "remote"
        assert [
            entry["id"] for entry in json.loads((await send(client, "GET", "/admin/instances")).body)["instances"]
        ] == [
            "a",
            "vllm-1",
        ]
        wrong = await send(client, "PATCH", path, {"engine": "echo"})
        assert (wrong.status, "echo" in str(wrong.error["message"])) == (422, True)
        assert (await send(client, "PATCH", path, {"id": "other"})).error["param"] == "id"
        barred = await send(client, "PATCH", path, {"address": "http://169.254.169.254"})
        assert (barred.status, barred.error["param"]) == (400, "address")
        assert json.loads((await send(client, "DELETE", path)).body) == {
            "id": "vllm-1",
            "removed": True,
            "warnings": [],
        }
        assert (await send(client, "GET", path)).status == 404
        assert [entry.instance.id for entry in gateway.registry.instances] == ["a"]


async def test_what_get_shows_can_be_posted() -> None:
    """The configured part of an instance registers the same one again."""
    async with administered() as (_, front), front.client() as client:
        given = {
            "id": "b",
            "address": "http://10.0.0.7:8000",
            "engine": "sglang",
            "models": ["*", "alias=real"],
            "capacity": 2.5,
            "weight": 0.5,
            "max_concurrent": 7,
            "window_tokens": 1000,
            "api_key_env": "OTHER_API_KEY",
            "metrics": "http://10.0.0.7:9000/metrics",
            "metadata": {"rack": "7"},
            "tier": "local",
            "forward_priority": True,
        }
        shown = json.loads((await send(client, "POST", "/admin/instances", given)).body)["instance"]
        assert {name: shown[name] for name in given} == given
        assert (await send(client, "DELETE", "/admin/instances/b")).status == 200
        posted = {name: shown[name] for name in given}
        assert (await send(client, "POST", "/admin/instances", posted)).status == 201


async def test_a_list_of_addresses_is_kept() -> None:
    """With admin.allow_addresses only what is on it may be registered."""
    config = Config.model_validate({"admin": {"allow_addresses": ["10.0.0.0/8", "gpu-*.lab"]}})
    settings = ServerSettings(admin=AdminSettings(listed=config.admin.listed()))
    async with administered(settings) as (_, front), front.client() as client:
        assert (await send(client, "POST", "/admin/instances", {"address": "http://10.0.0.7"})).status == 201
        assert (await send(client, "POST", "/admin/instances", {"address": "http://gpu-7.lab"})).status == 201
        refused = await send(client, "POST", "/admin/instances", {"address": "http://127.0.0.1:11434"})
        assert (refused.status, "allow_addresses" in str(refused.error["message"])) == (400, True)


async def test_no_answer_holds_a_key() -> None:
    """Every page that can be read is free of the engines' keys and of the admin's own; variables are named."""
    async with administered(LOCKED) as (_, front), front.client() as client:
        header = {"x-api-key": KEY}
        for method, path in await routes(client):
            if method == "GET" and "events" not in path and "export" not in path:
                text = (await send(client, "GET", path, headers=header)).body.decode()
                assert SECRET not in text
                assert KEY not in text
        assert "A_API_KEY" in (await send(client, "GET", "/admin/instances", headers=header)).body.decode()


# ---------------------------------------------------------------------------------------------------------- operation


async def test_drains_and_breakers_are_worked_by_hand() -> None:
    """Each is seen in the instance at once, and undone."""
    async with administered() as (_, front), front.client() as client:

        async def state() -> tuple[bool, str, str]:
            entry = json.loads((await send(client, "GET", "/admin/instances/a")).body)["instance"]
            return entry["draining"], entry["breaker"], entry["gate"]

        drained = json.loads((await send(client, "POST", "/admin/instances/a/drain")).body)["instance"]
        assert (drained["draining"], drained["gate"]) == (True, "draining")
        assert (await send(client, "POST", "/admin/instances/a/drain")).status == 200
        assert (await send(client, "POST", "/admin/instances/a/undrain")).status == 200
        assert await state() == (False, "closed", "open")
        tripped = json.loads((await send(client, "POST", "/admin/circuit-breakers/a/trip")).body)
        assert tripped["breaker"] == "open"
        assert 0 < tripped["breaker_opens_in_seconds"] <= 60
        assert await state() == (False, "open", "breaker")
        reset = json.loads((await send(client, "POST", "/admin/circuit-breakers/a/reset")).body)
        assert reset == {"instance": "a", "breaker": "closed", "breaker_opens_in_seconds": 0.0}
        assert await state() == (False, "closed", "open")


async def test_what_goes_on_can_be_seen() -> None:
    """Status, balancer, latencies and scaling have their numbers while nothing has happened yet, too."""
    async with administered() as (_, front), front.client() as client:
        status = json.loads((await send(client, "GET", "/admin/status")).body)
        assert status["status"] == "ok"
        assert {stage["name"] for stage in status["stages"]} >= {"queue", "inference"}
        assert status["uptime_seconds"] >= 0
        assert [entry["id"] for entry in status["instances"]] == ["a"]
        debug = json.loads((await send(client, "GET", "/admin/balancer/debug?prompt_tokens=100&class=batch")).body)
        assert (debug["model"], debug["prompt_tokens"], debug["service_class"]) == ("m", 100, "batch")
        (candidate,) = debug["candidates"]
        assert (candidate["instance"], candidate["chosen"], candidate["shut"]) == ("a", True, "")
        assert set(candidate["scores"]) == {"fair_load", "weighted", "least_in_flight", "round_robin", "two_choices"}
        summary = json.loads((await send(client, "GET", "/admin/metrics/summary")).body)
        assert summary["overall"]["latency"] == {
            "count": 0,
            "window_seconds": 0.0,
            "p50": None,
            "p95": None,
            "p99": None,
        }
        first = json.loads((await send(client, "GET", "/admin/scaling/evaluate")).body)
        second = json.loads((await send(client, "GET", "/admin/scaling/evaluate")).body)
        assert (first["action"], first["count"], first["desired"]) == ("none", 0, 1)
        assert (second["action"], second["reason"]) == (first["action"], first["reason"])
        wrong = await send(client, "GET", "/admin/balancer/debug?prompt_tokens=many")
        assert (wrong.status, wrong.error["param"]) == (422, "prompt_tokens")


async def test_a_key_does_not_follow_an_instance_to_another_address() -> None:
    """Its variable must be one that may be named here; else whoever may change an address would be sent the key."""
    rules = ServerSettings(admin=AdminSettings(key_variables=("B_API_KEY",)))
    async with administered(rules) as (_, front), front.client() as client:
        moved = await send(client, "PATCH", "/admin/instances/a", {"address": "http://10.0.0.8"})
        assert (moved.status, moved.error["param"]) == (400, "api_key_env")
        assert (await send(client, "PATCH", "/admin/instances/a", {"weight": 2.0})).status == 200
        without = {"address": "http://10.0.0.8", "api_key_env": None}
        assert (await send(client, "PATCH", "/admin/instances/a", without)).status == 200
