"""The bounds of the queue, over all pools: calls in all and calls of one user. Beyond them: refused at the door."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from heapq import nlargest

from headrace.core.pool import Pool
from headrace.core.settings import QueueSettings
from headrace.core.ticket import Call
from headrace.model import ServiceClass

_LOWEST_FIRST = sorted(ServiceClass, key=lambda service_class: -service_class.rank)


class Backlog:
    """Which calls are queued; the only place that counts them."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._users: dict[tuple[str, str], int] = {}
        self._classes: dict[ServiceClass, dict[str, Call]] = {service_class: {} for service_class in ServiceClass}
        self.size = 0
        """Calls that are queued."""

    def __len__(self) -> int:
        return self.size

    def user_full(self, call: Call) -> bool:
        """The call's user has as many calls queued as one user may."""
        return self._users.get(call.flow[1:3], 0) >= self._settings.per_user

    def bars(self, call: Call) -> bool:
        """Whether a bound keeps `call` from being added."""
        settings = self._settings
        if self.size >= settings.size:
            return True
        return self.size >= settings.per_user and self.user_full(call)

    def add(self, call: Call) -> None:
        """Count a call under its present leader. One that comes back for another attempt is never refused."""
        flow = call.flow
        user = flow[1:3]
        call.counted = (flow.service_class, user)
        self._users[user] = self._users.get(user, 0) + 1
        self._classes[flow.service_class][call.id] = call
        self.size += 1

    def remove(self, call: Call) -> None:
        """The give-back of `add`."""
        if call.counted is None:
            return
        service_class, user = call.counted
        call.counted = None
        self.size -= 1
        del self._classes[service_class][call.id]
        left = self._users[user] - 1
        if left:
            self._users[user] = left
        else:
            del self._users[user]

    def displaceable(self, call: Call) -> Call | None:
        """The newest queued call of the lowest class below `call`'s that never ran: it makes room for `call`."""
        own = call.flow.service_class
        for service_class in _LOWEST_FIRST:
            if service_class is own:
                return None
            for other in reversed(self._classes[service_class].values()):
                if other.attempt == 0:
                    return other
        return None

    def calls(self) -> Iterator[Call]:
        """Every queued call."""
        for calls in self._classes.values():
            yield from calls.values()

    def of(self, pool: Pool) -> list[Call]:
        """The queued calls of one pool; O(queue)."""
        return [call for call in self.calls() if call.pool is pool]

    def by_class(self) -> Mapping[ServiceClass, int]:
        """Queued calls per class."""
        return {service_class: len(calls) for service_class, calls in self._classes.items()}

    @property
    def users(self) -> Collection[tuple[str, str]]:
        """Those who have something queued, as (tenant, user)."""
        return self._users.keys()

    def by_user(self, most: int) -> Mapping[str, int]:
        """The `most` users with the longest queues, as `tenant/user`."""
        longest = nlargest(most, self._users.items(), key=lambda item: item[1])
        return {f"{tenant}/{user}": count for (tenant, user), count in longest}
