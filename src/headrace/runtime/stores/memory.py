"""Stores that live and die with the process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from random import Random

from headrace.runtime.stores import CAPACITY, Answer, LetterFilter, Listed, StoredLetter, TakenIn, Tried, listed
from headrace.runtime.stores.feed import Feed
from headrace.runtime.stores.ring import MAX_BYTES, LetterRing

_Entry = tuple[Answer, float, int]
"""An answer, when it expires, its size."""


class MemoryCache:
    """The least recently used go first, beyond `max_entries` answers or `max_bytes` bytes.

    `ttl` in seconds; 0 stores nothing. Each entry lives up to `jitter` (a share of the ttl) shorter, so that answers
    stored together do not all expire together.
    """

    def __init__(
        self,
        random: Random,
        *,
        ttl: float = 300.0,
        max_entries: int = 10_000,
        max_bytes: int = 256 * 1024 * 1024,
        jitter: float = 0.1,
    ) -> None:
        self._random = random
        self._ttl = ttl
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._jitter = jitter
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self.bytes = 0
        self.evicted = 0
        """Answers that had to go for others since the start; expired ones do not count."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, fingerprint: bytes, now: float) -> Answer | None:
        """The answer, or None when there is none or it has expired."""
        entry = self._entries.get(fingerprint)
        if entry is None:
            return None
        answer, expires, _ = entry
        if now >= expires:
            self._drop(fingerprint)
            return None
        self._entries.move_to_end(fingerprint)
        return answer

    def put(self, fingerprint: bytes, answer: Answer, now: float) -> None:
        """Keeps an answer, unless it alone is larger than everything may be."""
        if self._ttl <= 0 or self._max_entries <= 0:
            return
        if fingerprint in self._entries:
            self._drop(fingerprint)
        size = answer.size
        if size > self._max_bytes:
            return
        lifetime = self._ttl * (1.0 - self._jitter * self._random.random())
        self._entries[fingerprint] = (answer, now + lifetime, size)
        self.bytes += size
        while len(self._entries) > self._max_entries or self.bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))
            self.evicted += 1

    def _drop(self, fingerprint: bytes) -> None:
        self.bytes -= self._entries.pop(fingerprint)[2]


class MemoryDeadLetters:
    """Dead letters in memory only. `ring` may be used directly where nothing can be awaited."""

    degraded = False

    def __init__(self, capacity: int = CAPACITY, *, max_bytes: int = MAX_BYTES) -> None:
        self.ring = LetterRing(capacity, max_bytes=max_bytes)
        self.feed = Feed[Listed]()
        self.aged_out = 0

    @property
    def count(self) -> int:
        """Letters kept at the moment."""
        return len(self.ring)

    @property
    def evicted(self) -> int:
        """Letters lost to the bound since the start."""
        return self.ring.evicted

    def add(self, letter: StoredLetter) -> None:
        """Keeps a letter."""
        kept = self.ring.add(letter)
        if len(self.feed):
            self.feed.tell(listed(kept))

    async def list(self, which: LetterFilter) -> tuple[StoredLetter, ...]:
        """The letters meant, youngest first."""
        return self.ring.list(which)

    async def outline(self, which: LetterFilter) -> tuple[Listed, ...]:
        """The letters meant, youngest first, without their requests."""
        return tuple(listed(letter) for letter in self.ring.list(which))

    async def take_in(self, letters: Sequence[StoredLetter]) -> TakenIn:
        """Keeps letters from elsewhere under their numbers."""
        return self.ring.take_in(letters)

    async def get(self, letter_id: int) -> StoredLetter | None:
        """One letter."""
        return self.ring.get(letter_id)

    async def drain(self) -> tuple[StoredLetter, ...]:
        """Gives out and removes all that no replay has claimed, oldest first."""
        return self.ring.drain()

    async def delete(self, ids: Iterable[int]) -> int:
        """Removes letters; returns how many there were."""
        return self.ring.delete(ids)

    async def age_out(self, before: float) -> int:
        """Removes what died before that time; returns how many."""
        gone = self.ring.age_out(before)
        self.aged_out += gone
        return gone

    async def claim(self, letter_id: int) -> StoredLetter | None:
        """Takes a letter for a replay; None when it is gone or taken."""
        return self.ring.claim(letter_id)

    async def release(self, letter_id: int, tried: Tried | None = None) -> None:
        """The replay did not happen, or failed."""
        self.ring.release(letter_id, tried)

    async def done(self, letter_id: int) -> None:
        """The replay was answered: the letter is removed."""
        self.ring.delete((letter_id,))

    async def close(self) -> None:
        """Nobody is told anything any more."""
        self.feed.close()
