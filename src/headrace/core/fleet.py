"""The instances, the pool of each model name, and what survives of an instance when the set of them changes."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core.instance_state import MAX_NAMES, InstanceState
from headrace.core.naming import match
from headrace.core.planting import PlantTree
from headrace.core.pool import Pool
from headrace.core.remembering import learned_of, recall
from headrace.core.settings import Settings
from headrace.model import Instance, Learned


class Fleet:
    """All instances, and the pool of each model name.

    Args:
        plant: makes the empty fair queue of a new pool.
    """

    def __init__(self, settings: Settings, plant: PlantTree) -> None:
        self._settings = settings
        self._plant = plant
        self.states: dict[str, InstanceState] = {}
        self._pools: dict[tuple[str, ...], Pool] = {}
        self._names: dict[str, Pool | None] = {}

    def pools(self) -> Iterable[Pool]:
        """Every pool that was needed so far."""
        return self._pools.values()

    def configure(self, instances: Iterable[Instance], now: float | None = None) -> None:
        """Set the instances; those known by id and address keep what was learned. `now` None: the first are set.

        Models may be served by other instances afterwards: ask `pool` anew for every living call. Pools whose members
        are still the same keep their accounts; idle ones are dropped, so reloading does not pile them up.
        """
        fresh: dict[str, InstanceState] = {}
        for instance in instances:
            known = self.states.get(instance.id)
            if known is not None and known.instance.address == instance.address:
                known.reshape(instance)
                fresh[instance.id] = known
            else:
                fresh[instance.id] = state = InstanceState(instance, self._settings)
                if known is not None:
                    state.draining = known.draining
                if now is not None:
                    state.comes_back(now)
        self.states = fresh
        self._names.clear()
        for key, pool in list(self._pools.items()):
            if pool.tree.idle or any(fresh.get(member.instance.id) is not member for member in pool.members):
                del self._pools[key]
                for member in pool.members:
                    member.pools.remove(pool)

    def recall(self, learned: Iterable[Learned], now: float) -> None:
        """Take over what was learned before a restart; of instances that are gone nothing is kept."""
        for each in learned:
            state = self.states.get(each.instance)
            if state is not None:
                recall(state, each, now)

    def learned(self, now: float) -> tuple[Learned, ...]:
        """What is worth knowing of all instances after a restart."""
        return tuple(learned_of(state, now) for state in self.states.values())

    def pool(self, model: str) -> Pool | None:
        """The pool that serves `model`; None when no instance does."""
        known = self._names.get(model)
        if known is not None or model in self._names:
            return known
        members = tuple(state for state in self.states.values() if match(state.instance, model) is not None)
        pool: Pool | None = None
        if members:
            key = tuple(sorted(state.instance.id for state in members))
            pool = self._pools.get(key)
            if pool is None:
                pool = self._pools[key] = Pool(members, self._plant())
                for state in members:
                    state.pools.append(pool)
        if len(self._names) >= MAX_NAMES:
            del self._names[next(iter(self._names))]
        self._names[model] = pool
        return pool

    def nowhere(self) -> Pool:
        """A pool of no instances, for running calls whose model is served by none any more."""
        return Pool((), self._plant())
