"""`/admin/dlq/replay` and `/admin/dlq/replays`: dead letters sent again, paced, in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from headrace.errors import Fault, error_for, invalid_request, rate_limited
from headrace.runtime.addresses import AddressRefused
from headrace.runtime.replay_view import shown
from headrace.runtime.replays import MOST_LETTERS, RUNNING, Order, Replay, TooManyReplays
from headrace.runtime.resending import Unsendable, prepared
from headrace.runtime.stores import LetterFilter, StoredLetter
from headrace.server.admin.letter_shapes import FilterIn, PlannedOut, PlanOut, ReplayIn, ReplayOut, ReplaysOut
from headrace.server.admin.letter_times import time_of

if TYPE_CHECKING:
    from headrace.server.admin.dead_letters import LettersPort

_Id = Annotated[str, Path(max_length=64)]
_JSON = "application/json"


def replay_routes(port: LettersPort) -> APIRouter:
    """The routes."""
    router = APIRouter()
    _add_ordering(router, port)
    _add_watching(router, port)
    return router


def _add_ordering(router: APIRouter, port: LettersPort) -> None:
    replays = port.replays

    @router.post(
        "/replay",
        status_code=202,
        summary="Send letters again; with `dry_run` only say what would be sent",
        response_model=ReplayOut,
        responses={200: {"model": PlanOut, "description": "A dry run"}},
    )
    async def replay_letters(given: ReplayIn) -> Response:
        _check_instance(port, given.instance)
        order = await _order(port, given)
        if given.dry_run:
            plan = PlanOut(letters=[await _planned(port, number, order) for number in order.letters])
            return Response(plan.model_dump_json(), 200, media_type=_JSON)
        try:
            await replays.check(order)
            replay = replays.begin(order)
        except AddressRefused as error:
            raise error_for(invalid_request(f"webhook: {error}.", param="webhook", code="address_refused")) from None
        except TooManyReplays:
            message = f"{RUNNING} replays run already, or the gateway is being stopped. Wait for one, or cancel one."
            raise error_for(rate_limited(message, 5.0)) from None
        return _answer(replay, 202, {"location": f"/admin/dlq/replays/{replay.id}"})


def _add_watching(router: APIRouter, port: LettersPort) -> None:
    replays = port.replays

    @router.get("/replays", summary="The replays that are remembered", response_model=ReplaysOut)
    async def list_replays() -> Response:
        known = [shown(replay, ()) for replay in replays.all]
        return Response(msgspec.json.encode({"replays": known}), media_type=_JSON)

    @router.get("/replays/{id}", summary="One replay and its letters, in their order", response_model=ReplayOut)
    async def show_replay(
        id: _Id,  # noqa: A002 - its name in the path
        offset: Annotated[int, Query(ge=0, le=MOST_LETTERS)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_LETTERS)] = MOST_LETTERS,
        answers: Annotated[bool, Query(description="With the answers themselves.")] = True,
    ) -> Response:
        return _answer(_known(port, id), 200, {}, slice(offset, offset + limit), answers=answers)

    @router.delete("/replays/{id}", summary="Cancel a replay; one that is over is forgotten", response_model=ReplayOut)
    async def cancel_replay(id: _Id) -> Response:  # noqa: A002
        replay = _known(port, id)
        answer = _answer(replay, 200, {}, slice(0))
        await replays.cancel(replay)
        return _answer(replay, 200, {}) if replay.id in {kept.id for kept in replays.all} else answer


def _answer(
    replay: Replay, status: int, headers: dict[str, str], part: slice = slice(None), *, answers: bool = True
) -> Response:
    body = msgspec.json.encode(shown(replay, list(replay.results.values())[part], answers=answers))
    return Response(body, status, {**headers, "cache-control": "no-store"}, _JSON)


def _known(port: LettersPort, name: str) -> Replay:
    replay = port.replays.get(name)
    if replay is None:
        message = "There is no such replay. GET /admin/dlq/replays lists those that are remembered."
        raise error_for(Fault(404, "not_found_error", "replay_not_found", message, param="id", retryable=False))
    return replay


def _check_instance(port: LettersPort, name: str | None) -> None:
    if name is not None and all(view.id != name for view in port.snapshot().instances):
        message = "instance: there is no such instance; GET /admin/instances lists those there are"
        raise error_for(invalid_request(message, param="instance", code="invalid_field", status=422))


async def _order(port: LettersPort, given: ReplayIn) -> Order:
    if (given.ids is None) == (given.filter is None):
        message = 'Say which letters: either "ids", or "filter" ({} for all).'
        raise error_for(invalid_request(message, param="ids", code="invalid_field", status=422))
    if given.ids is not None:
        letters = tuple(dict.fromkeys(given.ids))
    else:
        found = await port.dead_letters.outline(_filter(given.filter or FilterIn()))
        letters = tuple(one.letter.id for one in reversed(found))
    return Order(
        letters=letters,
        model=given.model,
        instance=given.instance,
        pace=given.pace_per_second,
        tries=given.tries,
        webhook=given.webhook,
    )


def _filter(given: FilterIn) -> LetterFilter:
    return LetterFilter(
        reason=given.reason,
        tenant=given.tenant,
        user=given.user,
        model=given.model,
        service_class=given.service_class,
        instance=given.instance,
        id_prefix=given.id,
        since=time_of(given.since, "filter.since"),
        until=time_of(given.until, "filter.until"),
        limit=given.limit,
    )


async def _planned(port: LettersPort, number: int, order: Order) -> PlannedOut:
    """What would be done with one letter now."""
    letter = await port.dead_letters.get(number)
    if letter is None:
        return _plan(None, number, trouble="it is gone")
    try:
        _, request = prepared(letter, model=order.model, instance=order.instance)
    except Unsendable as error:
        return _plan(letter, number, trouble=str(error))
    trouble = "another replay has it" if letter.claimed else None
    weighing = port.weigh_up(request)
    able = () if weighing is None else weighing.candidates
    if not able and trouble is None:
        trouble = f"no instance would answer for the model {request.model}"
    chosen = next((candidate.view.id for candidate in able if candidate.chosen), None)
    return _plan(letter, number, request.model, [candidate.view.id for candidate in able], chosen, trouble=trouble)


def _plan(
    letter: StoredLetter | None,
    number: int,
    model: str = "",
    instances: list[str] | None = None,
    chosen: str | None = None,
    *,
    trouble: str | None,
) -> PlannedOut:
    return PlannedOut(
        id=number,
        request_id=letter.request_id if letter is not None else "",
        user=letter.user if letter is not None else "",
        model=model or (letter.model if letter is not None else ""),
        endpoint=letter.endpoint if letter is not None else "",
        instances=instances or [],
        now=chosen,
        trouble=trouble,
    )
