"""Limits on callers: requests by a sliding window, tokens by a bucket, parallel work by leases.

**Sliding window (exact log).** The times of the last `limit` admitted requests are kept; a request is admitted when
fewer than `limit` of them lie in the last `WINDOW` seconds. Unlike a fixed window this never lets twice the limit
through around a boundary, and unlike a counter whose expiry every hit renews it cannot lock out steady traffic: each
entry leaves on its own time. The log tells the exact moment at which the next request fits. Time O(1) amortised (each
entry is appended and dropped once), memory one float per admitted request, at most `limit`.

**Token bucket** (Turner, "New directions in communications", IEEE Communications Magazine 24(10), 1986; RFC 2697
meters with the same bucket). The level grows by `rate` per second up to `capacity`. A reservation is taken on arrival
by estimate and corrected when the real use is known, which may drive the level below zero: the caller then waits
until the debt is paid, so over the long run nobody gets more than `rate`. A request larger than the whole bucket
would wait for ever; it is let in when the bucket is full and leaves the rest as debt.

**Check and take are one step.** `Limiter.take` looks at every limit of a request first and takes only if all agree,
with no await in between; two requests cannot both pass the same check. What was taken is a `Lease`, given back
exactly once by `settle` or `refund`; further calls change nothing.

`now` is monotonic seconds and is only ever compared with itself: a step of the wall clock is not seen. A `now` older
than the last one counts as the last one.

**Bound.** At most `max_keys` keys are remembered. A new one beyond that pushes out an idle key (nothing running,
window empty, bucket full: forgetting it changes nothing) among the eight least recently used; if none of those is
idle, the least recently used. Its open leases stay valid, but what it has used is forgotten, which errs in the
caller's favour.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

WINDOW = 60.0
"""Length of a limit's period in seconds: rules speak of minutes."""

_CONCURRENCY_RETRY = 1.0
_EVICTION_SCAN = 8
_MUCH = 1_000_000
"""Requests that surely fit where nothing bounds their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRule:
    """What one key may do; None: no such limit.

    Raises ValueError when a limit is below 1 or `burst` is not a positive, finite number.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    burst: float = 1.0
    """Size of the token bucket, in minutes' worth of tokens."""
    concurrency: int | None = None
    """Most requests of the key that were admitted and have not ended."""

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "concurrency"):
            value: int | None = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if not (self.burst > 0 and math.isfinite(self.burst)):
            raise ValueError(f"burst must be a positive number, not {self.burst}")


class LimitKind(StrEnum):
    """Which of a rule's limits refused."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True)
class Denied:
    """A limit refused; nothing was taken."""

    message: str
    retry_after: float
    """Seconds until the same request fits, if nothing else is taken meanwhile; 1.0 for concurrency: nobody knows."""
    key: str
    kind: LimitKind


class SlidingWindow:
    """Exact log of the last `limit` admissions within `WINDOW` seconds."""

    __slots__ = ("limit", "log")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.log: deque[float] = deque()
        """When each was admitted, in order; those that are too old are dropped by `peek`."""

    def peek(self, now: float) -> float:
        """Seconds until one more request fits; 0.0: it fits now."""
        log = self.log
        edge = now - WINDOW
        while log and log[0] <= edge:
            log.popleft()
        excess = len(log) - self.limit
        if excess < 0:
            return 0.0
        # After a lowered limit more than one entry has to leave first.
        return max(log[excess] - edge, 0.0)

    def take(self, now: float) -> None:
        """Count a request that `peek` let through."""
        log = self.log
        log.append(now if not log or now >= log[-1] else log[-1])

    def give_back(self, at: float) -> None:
        """Forget the request counted at `at`. O(1) for the latest one, else a search."""
        log = self.log
        if log and log[-1] == at:
            log.pop()
        elif log and log[0] <= at:
            with suppress(ValueError):
                log.remove(at)

    def idle(self, now: float) -> bool:
        """Whether nothing lies in the window."""
        return not self.log or self.log[-1] <= now - WINDOW


class TokenBucket:
    """A level that refills at `rate` tokens per second up to `capacity` and may go below zero."""

    __slots__ = ("_at", "_capacity", "_level", "_rate")

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        self._rate = rate
        self._capacity = capacity
        self._level = capacity
        self._at = now

    def level(self, now: float) -> float:
        """Tokens that may be taken now; negative: debt."""
        if now > self._at:
            level = self._level + (now - self._at) * self._rate
            self._level = level if level < self._capacity else self._capacity
            self._at = now
        return self._level

    def peek(self, amount: float, now: float) -> float:
        """Seconds until `amount` (or a full bucket, if that is less) is there; 0.0: it is there now."""
        level = self.level(now)
        if level >= amount or level >= self._capacity:
            return 0.0
        return (min(amount, self._capacity) - level) / self._rate

    def take(self, amount: float, now: float) -> None:
        """Take `amount`, into debt if need be."""
        if now > self._at:
            self.level(now)
        self._level -= amount

    def give_back(self, amount: float, now: float) -> None:
        """Return `amount` (negative: take more), never above capacity."""
        self._level = min(self._capacity, self.level(now) + amount)

    def reshape(self, rate: float, capacity: float, now: float) -> None:
        """Change the limits; what was used stays used."""
        used = self._capacity - self.level(now)
        self._rate, self._capacity, self._level = rate, capacity, capacity - used

    def idle(self, now: float) -> bool:
        """Whether the bucket is full."""
        return self.level(now) >= self._capacity


class _Account:
    """What one key has used."""

    __slots__ = ("bucket", "log", "rule", "running", "spare", "window")

    def __init__(self, rule: LimitRule, now: float) -> None:
        self.window: SlidingWindow | None = None
        self.log: deque[float] | None = None
        """That of the window."""
        self.bucket: TokenBucket | None = None
        self.running = 0
        self.spare = 0
        """So many requests more fit in any case; at 0 `fits` has to look at the time."""
        self.rule = rule
        self.adopt(rule, now)

    def adopt(self, rule: LimitRule, now: float) -> None:
        """Follow a changed rule without forgetting what was used."""
        self.rule, self.spare = rule, 0
        if rule.requests_per_minute is None:
            self.window = None
        elif self.window is None:
            self.window = SlidingWindow(rule.requests_per_minute)
        else:
            self.window.limit = rule.requests_per_minute
        self.log = None if self.window is None else self.window.log
        if rule.tokens_per_minute is None:
            self.bucket = None
            return
        rate, capacity = rule.tokens_per_minute / WINDOW, rule.tokens_per_minute * rule.burst
        if self.bucket is None:
            self.bucket = TokenBucket(rate, capacity, now)
        else:
            self.bucket.reshape(rate, capacity, now)

    def fits(self, tokens: int, now: float) -> bool:
        """Whether no limit refuses; how many more surely will not is found anew."""
        window, most = self.window, self.rule.concurrency
        spare = _MUCH if most is None else most - self.running
        if window is not None:
            if len(window.log) >= window.limit and window.peek(now) > 0.0:
                return False
            spare = min(spare, window.limit - len(window.log))
        if self.bucket is not None:
            return spare > 0 and self.bucket.peek(tokens, now) <= 0.0
        self.spare = spare
        return spare > 0

    def refusal(self, key: str, tokens: int, now: float) -> Denied | None:
        """The refusal with the longest wait, if any limit refuses."""
        refusals: list[Denied] = []
        if self.window is not None and (wait := self.window.peek(now)) > 0:
            message = f"sliding window limit exceeded; window resets in {_milliseconds(wait)} ms"
            refusals.append(Denied(message, wait, key, LimitKind.REQUESTS))
        if self.bucket is not None and (wait := self.bucket.peek(tokens, now)) > 0:
            message = f"token limit exceeded; enough tokens are back in {_milliseconds(wait)} ms"
            refusals.append(Denied(message, wait, key, LimitKind.TOKENS))
        if self.rule.concurrency is not None and self.running >= self.rule.concurrency:
            message = f"concurrency limit exceeded; {self.running} requests are running, the most allowed"
            refusals.append(Denied(message, _CONCURRENCY_RETRY, key, LimitKind.CONCURRENCY))
        return max(refusals, key=lambda refusal: refusal.retry_after, default=None)

    def give_back(self, tokens: int, at: float | None, now: float) -> None:
        """End one request that `Limiter.take` took: return `tokens` and, with `at`, its place in the window."""
        self.running -= 1
        if self.bucket is not None:
            self.bucket.give_back(tokens, now)
        if at is not None and self.window is not None:
            self.window.give_back(at)

    def idle(self, now: float) -> bool:
        window, bucket = self.window, self.bucket
        return self.running == 0 and (window is None or window.idle(now)) and (bucket is None or bucket.idle(now))


class Lease:
    """What one request took from its keys; give it back with `Limiter.settle` or `Limiter.refund`."""

    __slots__ = ("accounts", "at", "tokens")

    def __init__(self, accounts: Sequence[_Account], tokens: int, at: float) -> None:
        self.accounts = accounts
        self.tokens = tokens
        self.at = at

    @property
    def open(self) -> bool:
        """Whether it has not been given back yet."""
        return self.accounts is not _GIVEN_BACK


_GIVEN_BACK: Sequence[_Account] = ()


class Limiter:
    """All limits of all keys; the only writer of their state."""

    __slots__ = ("_accounts", "_max_keys", "_now")

    def __init__(self, max_keys: int = 65_536) -> None:
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self._max_keys = max(1, max_keys)
        self._now = -math.inf

    def __len__(self) -> int:
        """Keys remembered."""
        return len(self._accounts)

    def take(self, keys: Sequence[tuple[str, LimitRule]], tokens: int, now: float) -> Lease | Denied:
        """Admit one request of `tokens` estimated tokens under all `keys` (distinct), or none of them.

        When several limits refuse, the answer names the one with the longest wait.
        """
        if now > self._now:
            self._now = now
        else:
            now = self._now
        known, fits = self._accounts, True
        accounts: list[_Account] = []
        for key, rule in keys:
            account = known.get(key)
            if account is None or account.rule is not rule:
                account = self._enter(key, rule, now)
            else:
                known.move_to_end(key)
            accounts.append(account)
            if account.spare < 1 and not account.fits(tokens, now):
                fits = False
        if not fits:
            return _refusal(accounts, keys, tokens, now)
        for account in accounts:
            account.running += 1
            account.spare -= 1
            if account.log is not None:
                account.log.append(now)
            if account.bucket is not None:
                account.bucket.take(tokens, now)
        return Lease(accounts, tokens, now)

    def settle(self, lease: Lease, used_tokens: int, now: float) -> None:
        """The request ended having used `used_tokens`: correct the estimate and end its concurrency. Idempotent."""
        self._close(lease, lease.tokens - used_tokens, None, now)

    def refund(self, lease: Lease, now: float) -> None:
        """The request was never served: take back all it took, its place in the window included. Idempotent."""
        self._close(lease, lease.tokens, lease.at, now)

    def running(self, key: str) -> int:
        """Open leases of `key`."""
        account = self._accounts.get(key)
        return 0 if account is None else account.running

    def _close(self, lease: Lease, tokens: int, at: float | None, now: float) -> None:
        accounts, lease.accounts = lease.accounts, _GIVEN_BACK
        now = self._now = max(now, self._now)
        for account in accounts:
            account.give_back(tokens, at, now)

    def _enter(self, key: str, rule: LimitRule, now: float) -> _Account:
        """The account of `key`, made or adapted to `rule`."""
        account = self._accounts.get(key)
        if account is None:
            if len(self._accounts) >= self._max_keys:
                self._evict(now)
            account = self._accounts[key] = _Account(rule, now)
            return account
        self._accounts.move_to_end(key)
        account.adopt(rule, now)
        return account

    def _evict(self, now: float) -> None:
        candidates = list(islice(self._accounts.items(), _EVICTION_SCAN))
        victim = next((key for key, account in candidates if account.idle(now)), candidates[0][0])
        del self._accounts[victim]


def _refusal(accounts: Sequence[_Account], keys: Sequence[tuple[str, LimitRule]], tokens: int, now: float) -> Denied:
    """The refusal with the longest wait; at least one of the accounts refuses."""
    refusals = [account.refusal(key, tokens, now) for account, (key, _) in zip(accounts, keys, strict=True)]
    return max((refusal for refusal in refusals if refusal is not None), key=lambda refusal: refusal.retry_after)


def _milliseconds(seconds: float) -> int:
    """Rounded up, but not for the sake of a float's last digits."""
    return math.ceil(round(seconds * 1000, 3))
