"""Dead letters over the admin API: found, watched, moved, removed, sent again; over real sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from headrace.model import ServiceClass
from headrace.runtime.replays import RUNNING
from headrace.runtime.stores import LetterFilter, StoredLetter
from headrace.runtime.stores.ndjson import export_line
from headrace.testing import ScriptedEngine, guarded, steps
from tests.e2e.client import chat, next_event
from tests.e2e.front import Front, front
from tests.patience import GUARD
from tests.runtime.letters import letter, shed

BODY = json.dumps(chat("again")).encode()
LINES = "application/x-ndjson"


@asynccontextmanager
async def desk(**sections: object) -> AsyncIterator[tuple[Front, ScriptedEngine]]:
    """A gateway with its engine."""
    async with ScriptedEngine(steps.answer("at last")) as engine, front(engine, **sections) as gate:  # type: ignore[arg-type]
        yield gate, engine


def keep(gate: Front, *letters: StoredLetter) -> list[int]:
    """Put letters into the gateway's store; their numbers."""
    for one in letters:
        gate.headrace.dead_letters.add(one)
    ring = gate.headrace.dead_letters.ring  # type: ignore[attr-defined]
    return [kept.id for kept in ring.oldest(10_000)][-len(letters) :]


async def call(
    gate: Front, method: str, path: str, body: object = None, data: bytes | None = None
) -> tuple[int, dict[str, Any], bytes]:
    """One request: status, JSON if it is some, bytes."""
    kind = {"content-type": LINES if data is not None else "application/json"}
    sent = data if data is not None else None if body is None else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, gate.client.url + path, data=sent, headers=kind if sent else {}) as response,
    ):
        answer = await response.read()
        try:
            return response.status, json.loads(answer), answer
        except ValueError:
            return response.status, {}, answer


async def over(gate: Front, name: object) -> dict[str, Any]:
    """The replay of that name, once it is over."""

    async def wait() -> dict[str, Any]:
        while (answer := (await call(gate, "GET", f"/admin/dlq/replays/{name}"))[1])["status"] == "running":
            pass
        return answer

    return await guarded(wait(), GUARD, "the replay ends")


def ids(answer: dict[str, Any]) -> list[str]:
    """Request ids of a page."""
    letters = answer["letters"]
    assert isinstance(letters, list)
    return [one["request_id"] for one in letters]


# ------------------------------------------------------------------------------------------------ looking and removing


async def test_letters_are_found_by_every_filter_and_in_pages() -> None:
    """The youngest first; the cursor leads through all of them, and the last page says that it is."""
    async with desk() as (gate, _):
        keep(
            gate,
            replace(letter("r1", died_at=1000.0), service_class=ServiceClass.NORMAL),
            letter("r2", died_at=2000.0, user="ann"),
            letter("r3", died_at=3000.0, model="other", tenant="lab"),
            shed("r4", died_at=4000.0),
        )
        first = (await call(gate, "GET", "/admin/dlq?limit=3"))[1]
        second = (await call(gate, "GET", f"/admin/dlq?limit=3&after={first['next']}"))[1]
        assert (ids(first), ids(second), second["next"]) == (["r4", "r3", "r2"], ["r1"], None)
        for query, found in {
            "reason=backpressure": ["r4"],
            "user=ann": ["r2"],
            "tenant=lab": ["r3"],
            "model=other": ["r3"],
            "class=normal": ["r1"],
            "instance=gpu-1&limit=1": ["r4"],
            "instance=gpu-2": [],
            "id=r3": ["r3"],
            "since=2000&until=4000": ["r3", "r2"],
            "since=1970-01-01T01:00": ["r4"],
            "since=1h": [],
        }.items():
            assert ids((await call(gate, "GET", f"/admin/dlq?{query}"))[1]) == found, query


async def test_one_letter_is_shown_with_what_it_asked() -> None:
    """As JSON, or in base64 where it is none; a list never holds it."""
    async with desk() as (gate, _):
        plain, odd = keep(gate, letter("plain", body=BODY), letter("odd", body=b"\xff"))
        _, shown, _ = await call(gate, "GET", f"/admin/dlq/{plain}")
        assert shown["request"] == chat("again")
        _, strange, _ = await call(gate, "GET", f"/admin/dlq/{odd}")
        assert (strange["request"], strange["request_base64"]) == (None, "/w==")
        listed = (await call(gate, "GET", "/admin/dlq"))[2]
        assert b"again" not in listed


async def test_letters_are_removed_one_or_several() -> None:
    """What is not there is 404, among others it is not counted."""
    async with desk() as (gate, _):
        one, two, three = keep(gate, letter("a"), letter("b"), letter("c"))
        assert (await call(gate, "DELETE", f"/admin/dlq/{one}"))[:2] == (200, {"deleted": 1})
        assert (await call(gate, "DELETE", f"/admin/dlq/{one},{two},{three}"))[:2] == (200, {"deleted": 2})
        status, answer, _ = await call(gate, "DELETE", f"/admin/dlq/{one}")
        assert (status, answer["error"]["code"]) == (404, "letter_not_found")


async def test_a_claim_that_was_left_behind_can_be_taken_away() -> None:
    """By hand, after a look."""
    async with desk() as (gate, _):
        (number,) = keep(gate, letter("a"))
        await gate.headrace.dead_letters.claim(number)
        status, answer, _ = await call(gate, "POST", f"/admin/dlq/{number}/release")
        assert (status, answer["claimed"]) == (200, False)
        assert (await call(gate, "POST", "/admin/dlq/4711/release"))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "param"),
    [
        ("GET", "/admin/dlq?limit=0", "limit"),
        ("GET", "/admin/dlq?class=urgent", "class"),
        ("GET", "/admin/dlq?since=soon", "since"),
        ("GET", "/admin/dlq?after=x", "after"),
        ("GET", "/admin/dlq/x", "id"),
        ("DELETE", "/admin/dlq/1,x", "ids"),
        ("POST", "/admin/dlq/0/release", "id"),
    ],
)
async def test_what_is_asked_wrongly_is_named(method: str, path: str, param: str) -> None:
    """422, with the field."""
    async with desk() as (gate, _):
        status, answer, _ = await call(gate, method, path)
        assert (status, answer["error"]["param"]) == (422, param)


# ------------------------------------------------------------------------------------------------------------- moving


async def test_an_export_can_be_taken_in_by_another_gateway() -> None:
    """More than a page, every byte, under the same numbers; twice is once, and bad lines are told."""
    async with desk() as (gate, _), desk() as (other, _):
        keep(gate, *(letter(f"r{number}", body=bytes([number])) for number in range(40)))
        _, _, lines = await call(gate, "GET", "/admin/dlq/export")
        assert len(lines.splitlines()) == 40
        part = (await call(gate, "GET", "/admin/dlq/export?limit=20&id=r1"))[2]
        assert len(part.splitlines()) == 11

        status, answer, _ = await call(other, "POST", "/admin/dlq/import", data=b"{}\n" + lines + b"no letter\n")
        assert (status, answer["added"], answer["known"], answer["refused"]) == (200, 40, 0, 2)
        assert [line["line"] for line in answer["lines"]] == [1, 42]
        again = (await call(other, "POST", "/admin/dlq/import", data=lines))[1]
        assert (again["added"], again["known"]) == (0, 40)
        assert (await call(other, "GET", "/admin/dlq/export"))[2] == lines


async def test_a_drain_gives_each_letter_once_and_leaves_those_that_a_replay_has() -> None:
    """What was sent is gone."""
    async with desk() as (gate, _):
        held, *_ = keep(gate, *(letter(f"r{number}") for number in range(20)))
        await gate.headrace.dead_letters.claim(held)
        _, _, lines = await call(gate, "POST", "/admin/dlq/drain")
        told = [json.loads(line)["request_id"] for line in lines.splitlines()]
        assert told == [f"r{number}" for number in range(19, 0, -1)]
        assert [kept.id for kept in await gate.headrace.dead_letters.list(LetterFilter())] == [held]


async def test_a_reader_that_leaves_a_drain_costs_no_letter_that_it_was_not_sent() -> None:
    """The rest stays, unclaimed."""
    async with desk() as (gate, _):
        count = 60
        keep(gate, *(letter(f"r{number}", body=b"x" * 400_000) for number in range(count)))
        async with aiohttp.ClientSession() as session:
            response = await session.post(gate.client.url + "/admin/dlq/drain")
            await response.content.readany()
            response.close()

        async def settled() -> tuple[StoredLetter, ...]:
            while True:
                await gate.client.get("/live")
                left = await gate.headrace.dead_letters.list(LetterFilter())
                if not any(kept.claimed for kept in left):
                    return left

        left = await guarded(settled(), GUARD, "the drain ends")
        assert 0 < len(left) < count


# ------------------------------------------------------------------------------------------------------------ watching


async def event(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """The next event's data."""
    data: dict[str, Any] = json.loads(await guarded(next_event(response), GUARD, "an event"))
    return data


async def test_new_letters_are_told_as_they_come() -> None:
    """Without what they asked; one who comes back with the last number hears what was missed, once."""
    async with desk() as (gate, _), aiohttp.ClientSession() as session:
        (seen,) = keep(gate, letter("seen"))
        keep(gate, letter("missed"))
        url = gate.client.url + "/admin/dlq/events"
        async with session.get(url, headers={"last-event-id": str(seen)}) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert (await event(response))["request_id"] == "missed"
            keep(gate, letter("new", body=b"SECRET-4711"))
            told = await event(response)
            assert (told["request_id"], told["body_bytes"]) == ("new", 11)
            assert "SECRET" not in json.dumps(told)


async def test_listeners_do_not_keep_a_gateway_from_stopping() -> None:
    """When it has drained, their streams end in order; nobody is left listening."""
    async with desk() as (gate, _), aiohttp.ClientSession() as session:
        async with session.get(gate.client.url + "/admin/dlq/events") as response:
            await response.content.readline()
            await gate.headrace.drain(1.0)
            assert await guarded(next_event(response), GUARD, "the end") == b""
        assert len(gate.headrace.dead_letters.feed) == 0


async def test_a_listener_that_leaves_is_forgotten() -> None:
    """Its place is free for another one."""
    async with desk() as (gate, _), aiohttp.ClientSession() as session:
        feed = gate.headrace.dead_letters.feed
        response = await session.get(gate.client.url + "/admin/dlq/events")
        await response.content.readline()
        assert len(feed) == 1
        response.close()

        async def gone() -> None:
            while len(feed):
                await gate.client.get("/live")

        await guarded(gone(), GUARD, "the listener is forgotten")


# ------------------------------------------------------------------------------------------------------------- replays


async def test_letters_are_sent_again_and_their_answers_told() -> None:
    """By filter, to another model; each answered letter is gone, the result can be asked for in parts."""
    async with desk(instances={"models": ["m", "other"]}) as (gate, engine):
        numbers = keep(gate, *(letter(f"r{number}", body=BODY, user=f"u{number % 2}") for number in range(4)))
        order = {"filter": {"user": "u1"}, "model": "other", "pace_per_second": 1000}
        status, begun, _ = await call(gate, "POST", "/admin/dlq/replay", order)
        assert (status, begun["status"]) == (202, "running")
        done = await over(gate, begun["id"])
        assert done["counts"] == {"waiting": 0, "sending": 0, "answered": 2, "failed": 0, "skipped": 0}
        sent = {request.json()["model"] for request in engine.requests}
        assert sent == {"other"}
        _, part, _ = await call(gate, "GET", f"/admin/dlq/replays/{begun['id']}?offset=1&limit=1")
        (one,) = part["letters"]
        assert (one["id"], one["status"], one["instance"]) == (numbers[3], "answered", "a")
        assert one["answer"]["choices"][0]["message"]["content"] == "at last"
        _, bare, _ = await call(gate, "GET", f"/admin/dlq/replays/{begun['id']}?answers=false")
        assert "answer" not in bare["letters"][0]
        assert ids((await call(gate, "GET", "/admin/dlq"))[1]) == ["r2", "r0"]
        assert "headrace_replayed_letters_total" in (await gate.client.get("/metrics")).body.decode()


async def test_a_dry_run_says_what_would_be_sent_where() -> None:
    """And sends nothing."""
    async with desk() as (gate, engine):
        plain, unkept, claimed = keep(
            gate, letter("plain", body=BODY), letter("unkept", body=None), letter("claimed", body=BODY)
        )
        await gate.headrace.dead_letters.claim(claimed)
        order = {"ids": [plain, unkept, claimed, 4711], "dry_run": True}
        status, answer, _ = await call(gate, "POST", "/admin/dlq/replay", order)
        letters = {one["id"]: one for one in answer["letters"]}
        assert status == 200
        assert (letters[plain]["instances"], letters[plain]["now"], letters[plain]["trouble"]) == (["a"], "a", None)
        assert [letters[number]["trouble"] for number in (unkept, claimed, 4711)] == [
            "the request was not kept",
            "another replay has it",
            "it is gone",
        ]
        elsewhere = {"ids": [plain], "dry_run": True, "model": "nowhere"}
        (one,) = (await call(gate, "POST", "/admin/dlq/replay", elsewhere))[1]["letters"]
        assert one["trouble"] == "no instance would answer for the model nowhere"
        assert engine.requests == []
        assert gate.headrace.dead_letters.count == 3


@pytest.mark.parametrize(
    ("order", "status", "param"),
    [
        ({}, 422, "ids"),
        ({"ids": [1], "filter": {}}, 422, "ids"),
        ({"ids": []}, 422, "ids"),
        ({"filter": {"until": "soon"}}, 422, "filter.until"),
        ({"filter": {"colour": "red"}}, 422, "filter.colour"),
        ({"filter": {}, "instance": "nobody"}, 422, "instance"),
        ({"filter": {}, "pace_per_second": 0}, 422, "pace_per_second"),
        ({"filter": {}, "webhook": "http://169.254.169.254/x"}, 400, "webhook"),
        ({"filter": {}, "webhook": "ftp://example.com"}, 400, "webhook"),
    ],
)
async def test_an_order_that_makes_no_sense_is_refused(order: object, status: int, param: str) -> None:
    """With the field that is wrong; no address leads to a machine's credentials."""
    async with desk() as (gate, _):
        found, answer, _ = await call(gate, "POST", "/admin/dlq/replay", order)
        assert (found, answer["error"]["param"]) == (status, param)
        assert gate.headrace.replays.all == ()


async def test_a_replay_can_be_cancelled_and_then_forgotten() -> None:
    """Cancelled: its letters stay; deleted once more: it is gone."""
    async with desk() as (gate, engine):
        engine.default = steps.hang()
        keep(gate, letter("a", body=BODY))
        _, begun, _ = await call(gate, "POST", "/admin/dlq/replay", {"filter": {}})
        await engine.got(1)
        path = f"/admin/dlq/replays/{begun['id']}"
        _, answer, _ = await call(gate, "DELETE", path)
        assert (answer["status"], gate.headrace.dead_letters.count) == ("cancelled", 1)
        assert [one["status"] for one in (await call(gate, "GET", "/admin/dlq/replays"))[1]["replays"]] == ["cancelled"]
        assert (await call(gate, "DELETE", path))[0] == 200
        assert (await call(gate, "GET", path))[0] == 404
        await engine.until(lambda: engine.closed_by_peer == 1)


async def test_only_so_many_replays_run_at_a_time() -> None:
    """One more is told to wait."""
    async with desk() as (gate, engine):
        engine.default = steps.hang()
        numbers = keep(gate, *(letter(f"r{number}", body=BODY) for number in range(RUNNING + 1)))
        found = [(await call(gate, "POST", "/admin/dlq/replay", {"ids": [number]}))[0] for number in numbers]
        assert found == [202] * RUNNING + [429]


async def test_lines_of_another_kind_of_body_are_not_read() -> None:
    """An import is lines of JSON; a replay is JSON."""
    async with desk() as (gate, _):
        line = export_line(letter("a"))
        status, answer, _ = await call(gate, "POST", "/admin/dlq/replay", data=line)
        assert status in (415, 422)
        assert set(answer["error"]) == {"message", "type", "param", "code"}
