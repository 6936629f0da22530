"""What is done with dead letters in the background: the old ones go, and a webhook is told of the new ones.

Messages hold no requests, only what `shown` says. While the receiver is away new letters wait in the feed's bound; of
more the oldest are lost for it, and the next message says how many.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import msgspec
import structlog

from headrace.runtime.stores import DeadLetters, Listed
from headrace.runtime.stores.feed import Listener, Missed
from headrace.runtime.webhooks import Hook, Webhooks

LOOK_EVERY = 3600.0
"""Seconds between two looks for letters that are too old."""
BATCH = 100
"""Most letters in one message."""
GATHER = 1.0
"""Seconds after the first new letter in which others may join its message."""
_DAY = 86_400.0
_log = structlog.get_logger(__name__)


class LetterKeeping:
    """Two tasks beside the traffic, each only if it is wanted.

    Args:
        letters: the store.
        keep_days: letters that died longer ago are removed; None: none are.
        hook: told of new letters; None: nobody is.
        webhooks: send the messages.
        wall: wall clock in seconds.
    """

    def __init__(
        self,
        letters: DeadLetters,
        webhooks: Webhooks,
        *,
        keep_days: float | None = None,
        hook: Hook | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._letters = letters
        self._webhooks = webhooks
        self._keep_days = keep_days
        self._hook = hook
        self._wall = wall
        self._tasks: list[asyncio.Task[None]] = []
        self.untold = 0
        """New letters of which the webhook was told nothing, since the start."""

    def start(self) -> None:
        """Begin; in the event loop that runs the gateway."""
        loop = asyncio.get_running_loop()
        if self._keep_days is not None:
            self._tasks.append(loop.create_task(self._age_out(self._keep_days * _DAY)))
        if self._hook is not None:
            listener = self._letters.feed.listen()
            self._tasks.append(loop.create_task(self._tell(self._hook, listener)))

    async def close(self) -> None:
        """Stop; what the webhook was not told yet is not told any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _age_out(self, seconds: float) -> None:
        while True:
            try:
                gone = await self._letters.age_out(self._wall() - seconds)
                if gone:
                    _log.info("dead letters were too old", removed=gone)
            except Exception:  # noqa: BLE001 - the task's outer edge: the next look may succeed
                _log.exception("dead letters: looking for old ones failed")
            await asyncio.sleep(LOOK_EVERY)

    async def _tell(self, hook: Hook, listener: Listener[Listed]) -> None:
        with listener:
            while (first := await listener.next()) is not None:
                batch, missed = await _gathered(listener, first)
                try:
                    sent = await self._webhooks.deliver(hook, message(batch, missed))
                except Exception:  # noqa: BLE001 - the task's outer edge: the next message may go
                    _log.exception("dead letters: the webhook failed")
                    continue
                self.untold += missed
                if not sent.delivered:
                    self.untold += len(batch)
                    _log.warning("dead letters: the webhook took nothing", tries=sent.tries, detail=sent.detail)


def message(batch: list[Listed], missed: int) -> bytes:
    """What the webhook is told: the letters without requests, and how many are not in here nor in another message."""
    return msgspec.json.encode({"type": "dead_letters", "letters": [shown(one) for one in batch], "missed": missed})


def shown(one: Listed) -> Mapping[str, object]:
    """A letter as JSON-able fields: everything but the request."""
    letter = one.letter
    return {
        "id": letter.id,
        "request_id": letter.request_id,
        "reason": letter.reason,
        "detail": letter.detail,
        "tenant": letter.tenant,
        "user": letter.user,
        "session": letter.session,
        "class": letter.service_class.value,
        "model": letter.model,
        "endpoint": letter.endpoint,
        "died_at": letter.died_at,
        "waited_seconds": round(letter.waited, 6),
        "attempts": msgspec.to_builtins(letter.attempts),
        "replays": letter.replays,
        "claimed": letter.claimed,
        "redacted": letter.redacted,
        "body_bytes": one.body_bytes,
    }


async def _gathered(listener: Listener[Listed], first: Listed | Missed) -> tuple[list[Listed], int]:
    """`first` and what comes within moments, at most `BATCH` letters; and how many were missed."""
    batch: list[Listed] = []
    missed = 0
    item: Listed | Missed | None = first
    ends = asyncio.get_running_loop().time() + GATHER
    while item is not None:
        if isinstance(item, Missed):
            missed += item.count
        else:
            batch.append(item)
        if len(batch) >= BATCH:
            break
        try:
            async with asyncio.timeout_at(ends):
                item = await listener.next()
        except TimeoutError:
            break
    return batch, missed
