"""Dead letters and replays as the admin API's OpenAPI document shows them. Times are Unix seconds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from headrace.model import ServiceClass
from headrace.runtime.replays import MOST_LETTERS, PACE, TRIES

LetterId = Annotated[int, Field(ge=1, le=2**53 - 1, description="A letter's number.")]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Moment = Annotated[str, Field(max_length=64, examples=["2h", "2026-11-30T12:00"])]


class AttemptOut(BaseModel):
    """One try at one instance; times are seconds since the request's first arrival."""

    number: int
    instance: str
    started: float
    ended: float
    cause: str
    status: int | None
    detail: str
    produced: int = 0


class LetterOut(BaseModel):
    """A request that was not answered, without what it asked."""

    id: int
    request_id: str
    reason: str
    detail: str
    tenant: str
    user: str
    session: str
    service_class: str = Field(serialization_alias="class", validation_alias="class")
    model: str
    endpoint: str
    died_at: float
    waited_seconds: float
    attempts: list[AttemptOut]
    replays: int = Field(description="How often it was sent again in vain.")
    claimed: bool = Field(description="A replay has it, or had it when the gateway died.")
    redacted: bool = Field(description="The request was kept without its texts and cannot be sent again.")
    body_bytes: int | None = Field(description="Length of the request that is kept; null: none is.")


class LetterPage(BaseModel):
    """Letters, the youngest first."""

    letters: list[LetterOut]
    next: int | None = Field(description="`after` for the next page; null: this is the last.")


class LetterAnswer(BaseModel):
    """One letter, and the request itself."""

    letter: LetterOut
    request: JsonValue = Field(description="As JSON; null where it is not kept or no JSON.")
    request_base64: str | None = Field(description="Where it is no JSON.")


class Deleted(BaseModel):
    """Letters that are gone."""

    deleted: int


class RefusedLine(BaseModel):
    """A line that was no letter."""

    line: int
    message: str


class ImportOut(BaseModel):
    """What became of imported lines."""

    added: int
    known: int = Field(description="They were here already.")
    dropped: int = Field(description="There was no room: they were the oldest.")
    refused: int
    lines: list[RefusedLine] = Field(description="The first 100 lines that were refused.")


class FilterIn(BaseModel):
    """Which letters are meant; what is left out means any."""

    model_config = ConfigDict(extra="forbid")

    reason: Name | None = Field(default=None, description="A whole reason, or the part before its colon.")
    tenant: Name | None = None
    user: Name | None = None
    model: Name | None = None
    service_class: ServiceClass | None = Field(default=None, alias="class")
    instance: Name | None = Field(default=None, description="One of those that were asked in vain.")
    id: Name | None = Field(default=None, description="How its number, or its request's id, begins.")
    since: Moment | None = Field(default=None, description="Died since then: `15m`, `2h`, `7d`, Unix time, or date.")
    until: Moment | None = Field(default=None, description="Died before then.")
    limit: int = Field(MOST_LETTERS, ge=1, le=MOST_LETTERS, description="At most so many, the youngest.")


class ReplayIn(BaseModel):
    """What to send again, and how. One of `ids` and `filter` is needed; `{"filter": {}}` means all."""

    model_config = ConfigDict(extra="forbid")

    ids: list[LetterId] | None = Field(default=None, min_length=1, max_length=MOST_LETTERS)
    filter: FilterIn | None = None
    model: Name | None = Field(default=None, description="Ask this model instead of each letter's own.")
    instance: Name | None = Field(default=None, description="Only this instance may answer.")
    dry_run: bool = Field(default=False, description="Send nothing; say what would be sent where.")
    pace_per_second: float = Field(PACE, ge=0.001, le=1000, allow_inf_nan=False, description="Letters a second.")
    tries: int = Field(TRIES, ge=1, le=20, description="How often each is sent at most.")
    webhook: Annotated[str, Field(max_length=2048)] | None = Field(
        default=None, description="An http(s) URL that gets the result in the end."
    )


class PlannedOut(BaseModel):
    """What would be done with one letter."""

    id: int
    request_id: str
    user: str
    model: str
    endpoint: str
    instances: list[str] = Field(description="Those that may answer it.")
    now: str | None = Field(description="The one that would get it at this moment; null: it would wait.")
    trouble: str | None = Field(description="Why it cannot be sent; null: it can.")


class PlanOut(BaseModel):
    """A dry run: nothing was sent."""

    dry_run: Literal[True] = True
    letters: list[PlannedOut]


class ReplayedOut(BaseModel):
    """How one letter fares."""

    id: int
    request_id: str
    status: Literal["waiting", "sending", "answered", "failed", "skipped"]
    tries: int
    instance: str | None = Field(description="Who answered.")
    detail: str = Field(description="Why it was not answered, the last time.")
    answer_bytes: int
    answer: JsonValue = Field(default=None, description="Null where there is none or it is not kept any more.")


class DeliveryOut(BaseModel):
    """What became of the webhook."""

    delivered: bool
    tries: int


class ReplayOut(BaseModel):
    """A replay."""

    id: str
    status: Literal["running", "done", "cancelled"]
    model: str | None
    instance: str | None
    pace_per_second: float
    tries: int
    created_at: float
    finished_at: float | None
    counts: dict[str, int] = Field(description="Letters by their status.")
    letters: list[ReplayedOut]
    webhook: DeliveryOut | None = Field(description="Null while it was not told, or none was asked for.")


class ReplaysOut(BaseModel):
    """The replays that are remembered, the oldest first, without their letters."""

    replays: list[ReplayOut]
