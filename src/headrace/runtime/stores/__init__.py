"""What outlives a request: finished answers, and requests that were not answered.

`memory` keeps them in this process, `sql` keeps dead letters on disk. Times are wall-clock seconds since 1970 in UTC
unless a parameter is called `now`: that one is the scheduler's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from headrace.model import AnswerForm, AttemptRecord, DeadLetter, ServiceClass, Usage
from headrace.runtime.stores.feed import Feed
from headrace.wire.frames import Frame

CAPACITY = 1000
"""Most dead letters kept unless configured otherwise."""

MOST_ATTEMPTS = 64
"""Attempts remembered of one letter; of those of many replays the oldest are forgotten."""

_FRAME_COST = 96
_LETTER_COST = 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer, ready to be sent again. `frames` are complete, usage and terminal frames included."""

    form: AnswerForm
    frames: tuple[Frame, ...]
    usage: Usage | None
    model: str
    instance: str

    @property
    def size(self) -> int:
        """Roughly the memory it takes, in bytes."""
        return sum(len(frame.data) + _FRAME_COST for frame in self.frames) + _LETTER_COST


class Cache(Protocol):
    """Finished answers by fingerprint."""

    def get(self, fingerprint: bytes, now: float) -> Answer | None:
        """The answer, or None when there is none that may still be used."""
        ...

    def put(self, fingerprint: bytes, answer: Answer, now: float) -> None:
        """Keeps an answer; an older one of the same fingerprint is replaced. May decline."""
        ...


class StoredLetter(Struct, frozen=True, kw_only=True, gc=False):
    """A request that was not answered, as it is kept. It never holds credentials: no header is in here."""

    request_id: str
    reason: str
    """The ending, or `backpressure:<stage>` for one refused at a full queue."""
    detail: str = ""
    tenant: str
    user: str
    session: str = ""
    service_class: ServiceClass
    model: str
    endpoint: str
    died_at: float
    waited: float
    """Seconds from arrival to death."""
    attempts: tuple[AttemptRecord, ...] = ()
    """Their times are seconds since the arrival."""
    body: bytes | None = None
    """The request, to be replayed; None when prompts are not kept."""
    id: int = 0
    """Given by the store; a younger letter has a greater one."""
    claimed: bool = False
    """A replay has taken it and has not yet said how it went."""
    replays: int = 0
    """How often it was sent again in vain."""
    redacted: bool = False
    """The texts in `body` were replaced by their lengths: it tells the request's shape and cannot be sent again."""

    @property
    def shed(self) -> bool:
        """Refused for want of room, not failed: the first to go when letters are too many."""
        return self.reason.startswith("backpressure:")

    @property
    def instances(self) -> frozenset[str]:
        """The instances that were asked in vain, by their ids."""
        return frozenset(attempt.instance for attempt in self.attempts)

    @property
    def size(self) -> int:
        """Roughly the memory it takes, in bytes."""
        return len(self.body or b"") + len(self.detail) + 256 * len(self.attempts) + _LETTER_COST

    def same(self, other: StoredLetter) -> bool:
        """Whether both tell of one request: its id and the moment of its end."""
        return self.request_id == other.request_id and self.died_at == other.died_at

    def after(self, tried: Tried) -> StoredLetter:
        """The same letter, unclaimed, after a replay that failed."""
        attempts = (*self.attempts, *tried.attempts)[-MOST_ATTEMPTS:]
        return replace(self, claimed=False, attempts=attempts, detail=tried.detail, replays=self.replays + 1)


class Tried(NamedTuple):
    """What a replay in vain leaves behind."""

    attempts: tuple[AttemptRecord, ...]
    """Those of the replay alone; times are seconds since the letter's first arrival."""
    detail: str
    """Why it failed, for operators: no prompt, no key, no address."""


class Listed(NamedTuple):
    """A letter without its request, which may be long."""

    letter: StoredLetter
    body_bytes: int | None
    """Length of the request that is kept; None: none is."""


class TakenIn(NamedTuple):
    """What became of letters from elsewhere."""

    added: int
    known: int
    """Those that were here already, by number and request id."""
    dropped: int
    """Those for which there was no room: the bound lets the oldest go."""


class Unwritable(Exception):
    """The store cannot be written at the moment, and what was asked cannot wait in memory."""


def listed(letter: StoredLetter) -> Listed:
    """The letter without its request."""
    body = letter.body
    return Listed(replace(letter, body=None), None if body is None else len(body))


def letter_of(letter: DeadLetter, died_at: float, body: bytes | None, *, redacted: bool = False) -> StoredLetter:
    """What is kept of the scheduler's `letter`, which died at the wall-clock time `died_at`.

    `body` is what a replay will send; None where prompts are not kept.
    """
    request, flow = letter.request, letter.request.flow
    return StoredLetter(
        request_id=request.id,
        reason=letter.reason,
        detail=letter.detail,
        tenant=flow.tenant,
        user=flow.user,
        session=flow.session,
        service_class=flow.service_class,
        model=request.model,
        endpoint=request.endpoint,
        died_at=died_at,
        waited=max(0.0, letter.died - letter.arrived),
        attempts=tuple([_since(attempt, letter.arrived) for attempt in letter.attempts]),
        body=body,
        redacted=redacted,
    )


def _since(attempt: AttemptRecord, arrived: float) -> AttemptRecord:
    return replace(attempt, started=attempt.started - arrived, ended=attempt.ended - arrived)


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Which letters are meant; None: any. The youngest come first."""

    reason: str | None = None
    """A whole reason, or the part before its colon."""
    model: str | None = None
    tenant: str | None = None
    user: str | None = None
    service_class: ServiceClass | None = None
    instance: str | None = None
    """One of those that were asked in vain."""
    id_prefix: str | None = None
    """How its number, or its request's id, begins."""
    since: float | None = None
    """Died at or after this time."""
    until: float | None = None
    """Died before this time."""
    before: int | None = None
    """Older than the letter of this id: the next page."""
    younger: int | None = None
    """Younger than the letter of this id: what has come since."""
    limit: int = 100

    def takes(self, letter: StoredLetter) -> bool:
        """Whether `letter` is meant; `limit` apart."""
        return (
            (self.reason is None or self.reason in (letter.reason, letter.reason.partition(":")[0]))
            and self.model in (None, letter.model)
            and self.tenant in (None, letter.tenant)
            and self.user in (None, letter.user)
            and self.service_class in (None, letter.service_class)
            and (self.instance is None or self.instance in letter.instances)
            and (self.id_prefix is None or _begins(letter, self.id_prefix))
            and (self.since is None or letter.died_at >= self.since)
            and (self.until is None or letter.died_at < self.until)
            and (self.before is None or letter.id < self.before)
            and (self.younger is None or letter.id > self.younger)
        )


def _begins(letter: StoredLetter, prefix: str) -> bool:
    return str(letter.id).startswith(prefix) or letter.request_id.startswith(prefix)


class DeadLetters(Protocol):
    """Keeps at most so many letters. Those refused for want of room fill at most half and are the first to go."""

    @property
    def feed(self) -> Feed[Listed]:
        """Tells of each letter that is added, in this process."""
        ...

    @property
    def count(self) -> int:
        """Letters kept at the moment."""
        ...

    @property
    def evicted(self) -> int:
        """Letters lost to the bound since the start."""
        ...

    @property
    def aged_out(self) -> int:
        """Letters removed for their age since the start."""
        ...

    @property
    def degraded(self) -> bool:
        """The store cannot be written; letters are kept in memory for the time being."""
        ...

    def add(self, letter: StoredLetter) -> None:
        """Keeps a letter and gives it an id. Never waits, never raises."""
        ...

    async def list(self, which: LetterFilter) -> tuple[StoredLetter, ...]:
        """The letters meant, youngest first, with their requests: all of these are in memory at once."""
        ...

    async def outline(self, which: LetterFilter) -> tuple[Listed, ...]:
        """The letters meant, youngest first, without their requests."""
        ...

    async def take_in(self, letters: Sequence[StoredLetter]) -> TakenIn:
        """Keeps letters from elsewhere under the numbers they have; doing it twice changes nothing.

        One whose number another letter has gets a new one. They are unclaimed, and the feed does not tell of them.
        Raises Unwritable when they could not be written; doing it again does no harm.
        """
        ...

    async def get(self, letter_id: int) -> StoredLetter | None:
        """One letter."""
        ...

    async def drain(self) -> tuple[StoredLetter, ...]:
        """Gives out and removes all that no replay has claimed, oldest first, in one step."""
        ...

    async def delete(self, ids: Iterable[int]) -> int:
        """Removes letters; returns how many there were."""
        ...

    async def age_out(self, before: float) -> int:
        """Removes what died before that time; returns how many, and counts them in `aged_out`."""
        ...

    async def claim(self, letter_id: int) -> StoredLetter | None:
        """Takes a letter for a replay; None when it is gone or somebody else has it: two replays make one call.

        A claim outlives the process. One that nobody released or finished stays visible as claimed: whether its call
        was made is not known, so it is not made again unless somebody releases it.
        """
        ...

    async def release(self, letter_id: int, tried: Tried | None = None) -> None:
        """The letter can be claimed again: the replay did not happen, or failed as `tried` says, which is added."""
        ...

    async def done(self, letter_id: int) -> None:
        """The replay was answered: the letter is removed."""
        ...

    async def close(self) -> None:
        """Writes what is waiting to be written and lets go of the store."""
        ...
