"""A bounded ring of dead letters in memory, and the rule of who goes first.

Two bounds: a number of letters and their bytes. Letters refused for want of room (`shed`) fill at most half of the
ring, and are evicted before any other: a flood of refusals never pushes out what really failed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec.structs import replace

from headrace.runtime.stores import CAPACITY, LetterFilter, StoredLetter, TakenIn, Tried

MAX_BYTES = 64 * 1024 * 1024


class LetterIds:
    """Ids that grow with the time of death and stay unique: microseconds since 1970, or one more than the last."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, died_at: float) -> int:
        """An id for a letter that died at `died_at`."""
        self._last = max(self._last + 1, int(died_at * 1_000_000))
        return self._last

    def beyond(self, used: int) -> None:
        """Never give out `used` or less again."""
        self._last = max(self._last, used)


class LetterRing:
    """At most `capacity` letters of `max_bytes` bytes in all. Synchronous, for one thread.

    Raises ValueError for a capacity below 1.
    """

    def __init__(
        self,
        capacity: int = CAPACITY,
        *,
        max_bytes: int = MAX_BYTES,
        ids: LetterIds | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError("a ring of dead letters holds at least one")
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._ids = ids or LetterIds()
        self._shed: OrderedDict[int, StoredLetter] = OrderedDict()
        self._failed: OrderedDict[int, StoredLetter] = OrderedDict()
        self.bytes = 0
        self.evicted = 0
        """Letters that had to go for younger ones since the start."""

    def __len__(self) -> int:
        return len(self._shed) + len(self._failed)

    def add(self, letter: StoredLetter) -> StoredLetter:
        """Keeps a letter; returns it with its id. One larger than the whole ring is kept without its body."""
        letter = self._put(replace(letter, id=self._ids.next(letter.died_at)))
        self._shrink()
        return letter

    def take_in(self, letters: Sequence[StoredLetter]) -> TakenIn:
        """Keeps letters from elsewhere; see `DeadLetters.take_in`."""
        numbers: list[int] = []
        for letter in letters:
            there = self.get(letter.id)
            if there is not None and (letter.same(there) or any(map(letter.same, self.oldest(len(self))))):
                continue
            number = letter.id if letter.id > 0 and there is None else self._ids.next(letter.died_at)
            self._ids.beyond(number)
            numbers.append(self._put(replace(letter, id=number, claimed=False)).id)
        # A letter from elsewhere may be older than those that are here: shelves are in the order of age.
        self._shed = OrderedDict(sorted(self._shed.items()))
        self._failed = OrderedDict(sorted(self._failed.items()))
        self._shrink()
        dropped = sum(self.get(number) is None for number in numbers)
        self.evicted -= dropped
        return TakenIn(len(numbers) - dropped, len(letters) - len(numbers), dropped)

    def oldest(self, count: int) -> tuple[StoredLetter, ...]:
        """Up to `count` letters, the oldest first."""
        both = (*islice(self._failed.values(), count), *islice(self._shed.values(), count))
        return tuple(sorted(both, key=_id)[:count])

    def list(self, which: LetterFilter) -> tuple[StoredLetter, ...]:
        """The letters meant, youngest first."""
        meant = (letter for letter in reversed(self.oldest(len(self))) if which.takes(letter))
        return tuple(islice(meant, which.limit))

    def get(self, letter_id: int) -> StoredLetter | None:
        """One letter."""
        return self._failed.get(letter_id) or self._shed.get(letter_id)

    def drain(self) -> tuple[StoredLetter, ...]:
        """Gives out and removes all that are not claimed, oldest first."""
        free = tuple(letter for letter in self.oldest(len(self)) if not letter.claimed)
        self.delete(letter.id for letter in free)
        return free

    def delete(self, ids: Iterable[int]) -> int:
        """Removes letters; returns how many there were."""
        return sum(self._remove(letter_id) for letter_id in tuple(ids))

    def renumber(self, ids: Iterable[int]) -> None:
        """Gives letters new ids, as if they had been added now."""
        for letter in [self.get(letter_id) for letter_id in tuple(ids)]:
            if letter is not None:
                self._remove(letter.id)
                self.add(letter)

    def age_out(self, before: float) -> int:
        """Removes what died before that time; returns how many."""
        return self.delete(letter.id for letter in self.oldest(len(self)) if letter.died_at < before)

    def claim(self, letter_id: int) -> StoredLetter | None:
        """Takes a letter for a replay; None when it is gone or taken."""
        letter = self.get(letter_id)
        if letter is None or letter.claimed:
            return None
        return self._mark(letter, claimed=True)

    def release(self, letter_id: int, tried: Tried | None = None) -> None:
        """Lets a claimed letter be claimed again; `tried` is added to what is known of it."""
        letter = self.get(letter_id)
        if letter is None:
            return
        if tried is None:
            self._mark(letter, claimed=False)
            return
        after = letter.after(tried)
        self._shelf(letter)[letter.id] = after
        self.bytes += after.size - letter.size

    def _put(self, letter: StoredLetter) -> StoredLetter:
        size = letter.size
        if size > self._max_bytes:
            letter = replace(letter, body=None)
            size = letter.size
        self._shelf(letter)[letter.id] = letter
        self.bytes += size
        return letter

    def _shrink(self) -> None:
        while len(self._shed) > (self._capacity + 1) // 2:
            self._evict(self._shed)
        while len(self) > self._capacity or self.bytes > self._max_bytes:
            self._evict(self._shed or self._failed)

    def _mark(self, letter: StoredLetter, *, claimed: bool) -> StoredLetter:
        marked = replace(letter, claimed=claimed)
        self._shelf(letter)[letter.id] = marked
        return marked

    def _shelf(self, letter: StoredLetter) -> OrderedDict[int, StoredLetter]:
        return self._shed if letter.shed else self._failed

    def _evict(self, shelf: OrderedDict[int, StoredLetter]) -> None:
        _, letter = shelf.popitem(last=False)
        self.bytes -= letter.size
        self.evicted += 1

    def _remove(self, letter_id: int) -> bool:
        letter = self._failed.pop(letter_id, None) or self._shed.pop(letter_id, None)
        if letter is None:
            return False
        self.bytes -= letter.size
        return True


def _id(letter: StoredLetter) -> int:
    return letter.id
