"""What the admin API changes and shows: instances, breakers, what goes on; and what it never shows."""

from __future__ import annotations

import json
from typing import cast

from headrace.build import Headrace
from headrace.config import Config
from headrace.server.admin.ports import AdminPort
from headrace.server.settings import AdminSettings, ServerSettings
from tests.server.administered import KEY, LOCKED, OPEN, SECRET, administered, routes, send
from tests.server.fakes import FakeGateway, front_door

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
        assert json.loads((await send(client, "DELETE", path)).body) == {
            "id": "vllm-1",
            "removed": True,
            "warnings": [],
        }
        assert (await send(client, "GET", path)).status == 404
        assert [entry.instance.id for entry in gateway.registry.instances] == ["a"]


async def test_a_change_that_cannot_be_is_refused_as_a_whole() -> None:
    """Keys that do not fit together, an id, a barred address: nothing of the instance has changed."""
    path = "/admin/instances/a"
    async with administered() as (gateway, front), front.client() as client:
        before = gateway.registry.instances
        wrong = await send(client, "PATCH", path, {"engine": "echo"})
        assert (wrong.status, "echo" in str(wrong.error["message"])) == (422, True)
        assert (await send(client, "PATCH", path, {"id": "other"})).error["param"] == "id"
        barred = await send(client, "PATCH", path, {"address": "http://169.254.169.254"})
        assert (barred.status, barred.error["param"]) == (400, "address")
        assert gateway.registry.instances == before


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
        assert reset == {"instance": "a", "breaker": "closed", "breaker_opens_in_seconds": 0.0, "warnings": []}
        assert await state() == (False, "closed", "open")


class Contested:
    """A gateway whose instance `b` is removed by somebody else while a change is written; it cannot be written, too."""

    def __init__(self, gateway: Headrace) -> None:
        self._gateway = gateway
        self.removing = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._gateway, name)

    async def saved(self) -> bool:
        """The moment in which the other one is faster."""
        if self.removing:
            self._gateway.registry.remove("b")
        return False


async def test_what_was_done_is_answered_although_the_instance_goes_meanwhile() -> None:
    """While a change is written, somebody else removes the instance: whoever made it is told that it was made."""
    made = {"id": "b", "address": "http://10.0.0.7", "models": ["b"]}
    steps = [
        ("PATCH", "/admin/instances/b", {"max_concurrent": 3}, 200),
        ("POST", "/admin/instances/b/drain", None, 200),
        ("POST", "/admin/instances/b/undrain", None, 200),
        ("POST", "/admin/circuit-breakers/b/trip", None, 200),
        ("POST", "/admin/circuit-breakers/b/reset", None, 200),
        ("POST", "/admin/instances", made, 201),
    ]
    async with administered() as (gateway, _):
        contested = Contested(gateway)
        port = FakeGateway(administration=cast("AdminPort", contested))
        async with front_door(port, OPEN) as front, front.client() as client:
            for method, path, body, status in steps:
                contested.removing = False
                if status == 200:
                    await send(client, "POST", "/admin/instances", made)
                contested.removing = True
                answer = await send(client, method, path, body)
                assert answer.status == status, answer.body
                assert any("forgotten" in word for word in json.loads(answer.body)["warnings"])


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
