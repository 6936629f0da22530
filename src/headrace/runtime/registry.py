"""The instances as they are now: those of the configuration, and those that came while the gateway runs.

The configuration is the truth about its own instances: what is changed or removed of them here lasts until the process
ends. All others, and who is drained, outlast it, if somebody keeps them (`kept`, `drained` and `changed`). Where the
two want the same id or the same model at the same address, the configuration wins.

Each change is applied before the method returns: whoever follows the set of instances is told, then the scheduler.

Bound: `MOST` instances; one more is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import structlog

from headrace import errors
from headrace.core.naming import beside_a_star
from headrace.errors import error_for
from headrace.model import Drained, Event, Instance, Reconfigured
from headrace.wire.adapters.addresses import same_place

MOST = 1000
CONFIGURED = "config"
"""The source of the instances of the configuration."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Registered:
    """An instance, and who registered it: `config`, `admin`, or `discovered:` and the root URL where it was found."""

    instance: Instance
    source: str
    draining: bool = False


class Registry:
    """Adds, changes and removes instances of a running gateway.

    Args:
        configured: the instances of the configuration, which the scheduler has already.
        step: tells the scheduler.
        follow: told the whole set before the scheduler works with it, and once at the start.
        key: the key in an environment variable; None: it is not set, or may not be used.
        changed: told after each change, so that it can be kept.
    """

    def __init__(
        self,
        configured: Iterable[Instance],
        step: Callable[[Event], None],
        *,
        follow: Callable[[Sequence[Instance]], None] | None = None,
        key: Callable[[str], str | None] | None = None,
        changed: Callable[[], None] | None = None,
    ) -> None:
        self._entries = {instance.id: Registered(instance, CONFIGURED) for instance in configured}
        self._step = step
        self._follow = follow
        self._key = key
        self._changed = changed

    @property
    def instances(self) -> tuple[Registered, ...]:
        """All of them; those of the configuration come first."""
        return tuple(self._entries.values())

    @property
    def kept(self) -> tuple[Registered, ...]:
        """Those that have to be kept somewhere to outlast the process."""
        return tuple(entry for entry in self._entries.values() if entry.source != CONFIGURED)

    @property
    def drained(self) -> frozenset[str]:
        """The ids of those that get no new work."""
        return frozenset(name for name, entry in self._entries.items() if entry.draining)

    def restore(self, kept: Iterable[Registered], drained: Iterable[str]) -> None:
        """Take over what an earlier process left. What does not fit to the configuration is left out and logged."""
        for entry in kept:
            reason = self._conflict(entry.instance)
            if reason is not None:
                _log.warning("a registered instance is left out", instance=entry.instance.id, reason=reason.message)
                continue
            self._entries[entry.instance.id] = replace(entry, draining=False)
            _log.info("a registered instance is used again", instance=entry.instance.id, source=entry.source)
            self._warn(entry.instance)
        self._apply()
        for name in drained:
            if name in self._entries:
                _log.warning("an instance was drained and still is", instance=name)
                self._drain(name, draining=True)

    def add(self, instance: Instance, source: str) -> tuple[str, ...]:
        """Register an instance; it is used at once. Returns what is probably not meant, one sentence each.

        Raises HeadraceError (409) for an id that is taken, a model that is registered at the same address, and one
        instance too many.
        """
        self._refuse(self._conflict(instance))
        self._entries[instance.id] = Registered(instance, source)
        self._tell()
        return self._warnings(instance)

    def replace(self, name: str, instance: Instance) -> tuple[str, ...]:
        """Change an instance; what was learned of it stays while its address does. Returns what `add` returns.

        Raises HeadraceError: 404 for an unknown name, 409 as `add` does. Raises ValueError for another id.
        """
        known = self._known(name)
        if instance.id != name:
            raise ValueError("an instance keeps its id")
        self._refuse(self._conflict(instance, but=name))
        self._entries[name] = replace(known, instance=instance)
        self._tell()
        return (*self._warnings(instance), *_until_restart(known))

    def remove(self, name: str) -> tuple[str, ...]:
        """Remove an instance: what runs there ends there, what waits for it goes elsewhere or is told that it cannot.

        Returns what is probably not meant. Raises HeadraceError (404).
        """
        known = self._known(name)
        del self._entries[name]
        self._tell()
        return _until_restart(known)

    def drain(self, name: str) -> None:
        """Give an instance no new work. Raises HeadraceError (404)."""
        self._known(name)
        self._drain(name, draining=True)
        self._keep()

    def undrain(self, name: str) -> None:
        """Let a drained instance have work again. Raises HeadraceError (404)."""
        self._known(name)
        self._drain(name, draining=False)
        self._keep()

    # ------------------------------------------------------------------ inside

    def _known(self, name: str) -> Registered:
        entry = self._entries.get(name)
        if entry is None:
            raise error_for(errors.instance_not_found(name))
        return entry

    def _drain(self, name: str, *, draining: bool) -> None:
        self._entries[name] = replace(self._entries[name], draining=draining)
        self._step(Drained(name, draining))

    def _tell(self) -> None:
        self._apply()
        self._keep()

    def _apply(self) -> None:
        instances = tuple(entry.instance for entry in self._entries.values())
        if self._follow is not None:
            self._follow(instances)
        self._step(Reconfigured(instances))

    def _keep(self) -> None:
        if self._changed is not None:
            self._changed()

    def _conflict(self, instance: Instance, but: str | None = None) -> errors.Fault | None:
        """Why `instance` cannot be there beside the others, one of which it may replace."""
        others = [entry.instance for name, entry in self._entries.items() if name != but]
        if any(other.id == instance.id for other in others):
            return errors.instance_exists(instance.id)
        if len(others) >= MOST:
            return errors.instances_full(MOST)
        place, names = same_place(instance.address), {served.name for served in instance.models}
        for other in others if place else ():
            twice = next((served.name for served in other.models if served.name in names), None)
            if twice is not None and same_place(other.address) == place:
                return errors.instance_doubled(other.id, twice)
        return None

    def _refuse(self, reason: errors.Fault | None) -> None:
        if reason is not None:
            raise error_for(reason)

    def _warnings(self, instance: Instance) -> tuple[str, ...]:
        place = same_place(instance.address)
        same = [e.instance for e in self._entries.values() if place and same_place(e.instance.address) == place]
        return (*self._warn(instance), *beside_a_star(same))

    def _warn(self, instance: Instance) -> tuple[str, ...]:
        """What is said, and logged, of a key that is not there."""
        variable = instance.api_key_env
        if variable is None or self._key is None or self._key(variable) is not None:
            return ()
        _log.warning("an instance has no key", instance=instance.id, variable=variable)
        return (f"The environment variable {variable} is not set, so requests go to '{instance.id}' without a key.",)


def _until_restart(entry: Registered) -> tuple[str, ...]:
    if entry.source != CONFIGURED:
        return ()
    name = entry.instance.id
    return (f"'{name}' is in the configuration: it is as it is written there again once headrace is restarted.",)
