"""`/admin/dlq`: dead letters looked at, watched, moved, removed; `replay_routes` has what sends them again.

Letters leave in lines of JSON (NDJSON) a page at a time, so that the store's size never is that of an answer.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Annotated, Any, Protocol

import msgspec
from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import StreamingResponse

from headrace.config.wording import LETTER_IDS
from headrace.core.weighing import Weighing
from headrace.errors import Fault, HeadraceError, error_for, invalid_request
from headrace.model import Request as GatewayRequest
from headrace.model import ServiceClass, Snapshot
from headrace.runtime.letter_keeping import shown
from headrace.runtime.replays import Replays
from headrace.runtime.stores import DeadLetters, LetterFilter, Listed, StoredLetter, listed
from headrace.server.admin.letter_shapes import (
    Deleted,
    ImportOut,
    LetterAnswer,
    LetterId,
    LetterOut,
    LetterPage,
    Moment,
    Name,
)
from headrace.server.admin.letter_streams import drained, events, exported, imported
from headrace.server.admin.letter_times import time_of
from headrace.server.admin.replay_routes import replay_routes

MOST_LISTED = 1000
MOST_AT_ONCE = 1000
"""Letters that one request may list; and remove."""
_NDJSON = "application/x-ndjson"


class LettersPort(Protocol):
    """The gateway, as far as its dead letters go."""

    @property
    def dead_letters(self) -> DeadLetters:
        """The store."""
        ...

    @property
    def replays(self) -> Replays:
        """What sends them again."""
        ...

    def snapshot(self) -> Snapshot:
        """What is going on now."""
        ...

    def weigh_up(self, request: GatewayRequest) -> Weighing | None:
        """How `request` would be placed; None when no instance serves its model."""
        ...


def which_letters(
    reason: Annotated[Name | None, Query(description="A whole reason, or the part before its colon.")] = None,
    tenant: Name | None = None,
    user: Name | None = None,
    model: Name | None = None,
    service_class: Annotated[ServiceClass | None, Query(alias="class")] = None,
    instance: Annotated[Name | None, Query(description="One of those that were asked in vain.")] = None,
    id: Annotated[Name | None, Query(description="How its number, or its request's id, begins.")] = None,  # noqa: A002
    since: Annotated[Moment | None, Query(description="Died since: `15m`, `2h`, `7d`, Unix time, or date.")] = None,
    until: Annotated[Moment | None, Query(description="Died before.")] = None,
    after: Annotated[LetterId | None, Query(description="Only older letters than this one: the next page.")] = None,
) -> LetterFilter:
    """The filter that a query asks for."""
    return LetterFilter(
        reason=reason,
        tenant=tenant,
        user=user,
        model=model,
        service_class=service_class,
        instance=instance,
        id_prefix=id,
        since=time_of(since, "since"),
        until=time_of(until, "until"),
        before=after,
    )


Which = Annotated[LetterFilter, Depends(which_letters)]
Number = Annotated[LetterId, Path()]


def dead_letter_routes(port: LettersPort) -> APIRouter:
    """The routes, those of replays included."""
    router = APIRouter(prefix="/admin/dlq", tags=["dead letters"])
    # Before `/{id}`, which would take their paths.
    _add_moving(router, port)
    router.include_router(replay_routes(port))
    letters = port.dead_letters

    @router.get("", summary="Dead letters, the youngest first, without what they asked")
    async def list_letters(which: Which, limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100) -> LetterPage:
        found = await letters.outline(_limited(which, limit))
        last = found[-1].letter.id if len(found) == limit else None
        return LetterPage(letters=[letter_out(one) for one in found], next=last)

    @router.get("/{id}", summary="One letter, with what it asked")
    async def show_letter(id: Number) -> LetterAnswer:  # noqa: A002 - its name in the path
        letter = await _known(letters, id)
        request, encoded = _readable(letter.body)
        return LetterAnswer(letter=letter_out(listed(letter)), request=request, request_base64=encoded)

    @router.delete("/{ids}", summary="Remove letters: one number, or several with commas between them")
    async def delete_letters(ids: Annotated[str, Path(pattern=LETTER_IDS)]) -> Deleted:
        numbers = [int(number) for number in ids.split(",")]
        if len(numbers) > MOST_AT_ONCE:
            raise error_for(invalid_request(f"At most {MOST_AT_ONCE} letters can be removed at once.", status=422))
        gone = await letters.delete(numbers)
        if not gone:
            raise _no_letter()
        return Deleted(deleted=gone)

    @router.post("/{id}/release", summary="Let a letter be sent again whose replay was cut short")
    async def release_letter(id: Number) -> LetterOut:  # noqa: A002
        await _known(letters, id)
        await letters.release(id)
        return letter_out(listed(await _known(letters, id)))

    return router


def _add_moving(router: APIRouter, port: LettersPort) -> None:
    """The routes over which letters are watched, and leave and come in lines."""
    letters = port.dead_letters
    streams: dict[int | str, dict[str, Any]] = {200: {"content": {_NDJSON: {"schema": {"type": "string"}}}}}

    @router.get("/export", summary="Letters as lines of JSON, requests included; they stay", responses=streams)
    async def export_letters(
        which: Which, limit: Annotated[int, Query(ge=1, le=1_000_000)] = 1_000_000
    ) -> StreamingResponse:
        return StreamingResponse(exported(letters, _limited(which, limit)), media_type=_NDJSON)

    @router.post("/drain", summary="Letters as lines of JSON; what has been sent is removed", responses=streams)
    async def drain_letters(request: Request) -> StreamingResponse:
        return StreamingResponse(drained(letters, request.is_disconnected), media_type=_NDJSON)

    @router.post(
        "/import",
        summary="Take exported letters in, under their numbers; twice is once",
        openapi_extra={"requestBody": {"content": {_NDJSON: {"schema": {"type": "string"}}}, "required": True}},
    )
    async def import_letters(request: Request) -> ImportOut:
        return await imported(letters, (await request.body()).split(b"\n"))

    @router.get(
        "/events",
        summary="New letters as server-sent events, without what they asked",
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    async def watch_letters(
        last_event_id: Annotated[str | None, Header(description="Begin behind this letter.")] = None,
    ) -> StreamingResponse:
        if letters.feed.full:
            raise error_for(_full("Too many listen to new letters already."))
        stream = events(letters, last_event_id)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-cache"})


def letter_out(one: Listed) -> LetterOut:
    """A letter as it is shown."""
    return LetterOut.model_validate(shown(one))


async def _known(letters: DeadLetters, number: int) -> StoredLetter:
    letter = await letters.get(number)
    if letter is None:
        raise _no_letter()
    return letter


def _no_letter() -> HeadraceError:
    message = "There is no such dead letter. GET /admin/dlq lists those there are."
    return error_for(Fault(404, "not_found_error", "letter_not_found", message, param="id", retryable=False))


def _full(message: str) -> Fault:
    return Fault(503, "server_error", "busy", message, retry_after=5.0)


def _limited(which: LetterFilter, limit: int) -> LetterFilter:
    return replace(which, limit=limit)


def _readable(body: bytes | None) -> tuple[object, str | None]:
    """A request as JSON, or in base64 where it is none."""
    if body is None:
        return None, None
    try:
        return msgspec.json.decode(body), None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None, base64.b64encode(body).decode()
