"""What each user has been served of late, for operators: decisions never depend on it.

Charges are kept as sums that fade with a time constant of a minute, so that a steady rate reads as what was charged in
the last minute. The decay is forward (Cormode, Shkapenyuk, Srivastava, Xu, "Forward decay", ICDE 2009): a charge is
entered with a weight that grows with time and all are divided by today's weight when they are read, so an entry costs
O(1) and nothing has to be aged one by one.

**Bound:** 10,000 users; beyond it the half with the least service is forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import nlargest
from math import exp

from headrace.model import Flow
from headrace.yardsticks import jain

MINUTE = 60.0
"""Seconds in which a charge fades to 37 %."""
_MOST = 10_000
_LARGEST = 30.0
"""Exponent at which the sums are written anew, long before a float has no room left."""


class Received:
    """Charged service per (tenant, user), fading."""

    __slots__ = ("_since", "_users")

    def __init__(self) -> None:
        self._users: dict[tuple[str, str], float] = {}
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._users)

    def add(self, flow: Flow, cost: float, now: float) -> None:
        """A user was charged `cost` more, or got some of it back."""
        age = (now - self._since) / MINUTE
        if age > _LARGEST:
            self._rebase(now)
            age = 0.0
        key = flow[1:3]
        known = self._users.get(key)
        if known is None:
            known = 0.0
            if len(self._users) >= _MOST:
                self._users = dict(nlargest(_MOST // 2, self._users.items(), key=lambda item: item[1]))
        self._users[key] = known + cost * exp(age)

    def top(self, most: int, now: float) -> Mapping[str, float]:
        """The `most` users served most in the last minute, as `tenant/user`."""
        fade = exp(min(0.0, (self._since - now) / MINUTE))
        most_served = nlargest(most, self._users.items(), key=lambda item: item[1])
        return {f"{tenant}/{user}": charged * fade for (tenant, user), charged in most_served if charged > 0.0}

    def jain(self, users: Collection[tuple[str, str]]) -> float | None:
        """Jain's index of what these users were served in the last minute; None: fewer than two, or nothing yet.

        See `yardsticks`.
        """
        return jain(max(0.0, self._users.get(user, 0.0)) for user in users)

    def _rebase(self, now: float) -> None:
        fade = exp(max(-700.0, (self._since - now) / MINUTE))
        self._users = {key: left for key, charged in self._users.items() if (left := charged * fade) > 1e-3}
        self._since = now
