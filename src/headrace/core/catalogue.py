"""What may be asked for beside the instances' own names, and what takes over when a model cannot answer.

A name stands for one model (an alias), for several in order, or for several by weight. The others of them take over
when the first cannot answer; then come the fallbacks of the name, of the first model, and of each model that was
reached, nearest first. All of it is worked out when the settings are taken, so that a request only looks its name up.
A chain names each model once and has at most `MOST_MODELS`, which bounds the attempts over it.

A draw by weight is the same for all requests of one session, so that a conversation stays with its model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from headrace.core.settings import USUAL_CAUSES, ModelSettings
from headrace.model import FallbackCause, Flow

if TYPE_CHECKING:
    from random import Random

MOST_MODELS = 8
"""Models in one chain, the first included."""


class Step(NamedTuple):
    """A model that takes over from those before it."""

    model: str
    on: frozenset[FallbackCause]
    """Why it may."""


class Route(NamedTuple):
    """What stands behind a name."""

    model: str
    """The model to ask."""
    rest: tuple[Step, ...] = ()
    """Who takes over, in order."""


class Catalogue:
    """Names, and the models behind them.

    Raises ValueError, naming the names, for a name that leads back to itself, a list within a list, weights that are
    all 0, and a chain that is too long.
    """

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._harmless: set[str] = set()
        for name in (*settings.names, *settings.fallbacks):
            self._refuse_loop((name,))
        for name in settings.names:
            self._refuse_nesting(name)
        self.routes: dict[str, tuple[tuple[float, Route], ...]] = {
            name: self._planned(name) for name in {**settings.names, **settings.fallbacks}
        }
        """What a name leads to, with weights; a name that is not here stands for itself."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are not models themselves."""
        return tuple(self._settings.names)

    @property
    def falls_back(self) -> bool:
        """Whether any request may go from one model to another."""
        return any(route.rest for routes in self.routes.values() for _, route in routes)

    def models(self, name: str) -> tuple[str, ...]:
        """The models that may be asked at first for `name`; itself where it stands for nothing else."""
        return self._first(name)

    def referred(self) -> Iterator[tuple[str, str]]:
        """Every model that must be there, with the key of the settings that says so."""
        for name in self._settings.names:
            yield from ((f"models.{name}", model) for model in self._first(name))
        for name, fallback in self._settings.fallbacks.items():
            for key in (name, *fallback.models):
                yield from ((f"fallbacks.{name}", model) for model in self._first(key))

    def resolve(self, name: str, flow: Flow, random: Random) -> Route:
        """What to ask for `name`; a name that nothing is said of stands for itself."""
        routes = self.routes.get(name)
        if routes is None:
            return Route(name)
        if len(routes) == 1:
            return routes[0][1]
        total = sum(weight for weight, _ in routes)
        if flow.session:
            drawn = crc32("\0".join((*flow[1:], name)).encode()) / 2.0**32 * total
        else:
            drawn = random.random() * total
        for weight, route in routes:
            if drawn < weight:
                return route
            drawn -= weight
        return routes[0][1]

    def _planned(self, name: str) -> tuple[tuple[float, Route], ...]:
        """Each route that a request for `name` may take, with its weight; the heaviest first."""
        models, weights = self._first(name), self._weights(name)
        if weights is None:
            return ((1.0, self._route(name, models)),)
        return tuple(
            (weights[model], self._route(name, (model, *(other for other in models if other != model))))
            for model in models
            if weights[model] > 0
        )

    def _route(self, name: str, models: tuple[str, ...]) -> Route:
        """Models in order, then what they fall back to, nearest first; each once."""
        steps = dict.fromkeys(models[1:], USUAL_CAUSES)
        sources = [name, *models]
        for source in sources:
            virtual, fallback = self._settings.names.get(source), self._settings.fallbacks.get(source)
            for entry in (*(virtual.models if virtual else ()), *(fallback.models if fallback else ())):
                if entry not in sources:
                    sources.append(entry)
            if fallback is not None:
                for model in self._all(fallback.models):
                    steps.setdefault(model, fallback.on)
        steps.pop(models[0], None)
        if len(steps) >= MOST_MODELS:
            raise ValueError(f"'{name}' leads to {len(steps) + 1} models; {MOST_MODELS} are the most")
        return Route(models[0], tuple(Step(model, on) for model, on in steps.items()))

    def _first(self, name: str) -> tuple[str, ...]:
        """The models a name stands for, the preferred first, aliases followed."""
        virtual = self._settings.names.get(name)
        if virtual is None:
            return (name,)
        weights = virtual.weights
        found = virtual.models
        if weights is not None:
            found = tuple(sorted(found, key=lambda model: -weights[virtual.models.index(model)]))
        return self._all(found)

    def _all(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(model for name in names for model in self._first(name)))

    def _weights(self, name: str) -> Mapping[str, float] | None:
        """The weight of each model behind a name; None where they are in order."""
        virtual = self._settings.names.get(name)
        if virtual is None:
            return None
        if virtual.weights is None:
            return self._weights(virtual.models[0]) if len(virtual.models) == 1 else None
        found: dict[str, float] = {}
        for entry, weight in zip(virtual.models, virtual.weights, strict=True):
            (model,) = self._first(entry)
            found[model] = found.get(model, 0.0) + weight
        if not sum(found.values()) > 0:
            raise ValueError(f"models.{name}: at least one weight must be greater than 0")
        return found

    def _refuse_loop(self, path: tuple[str, ...]) -> None:
        virtual, fallback = self._settings.names.get(path[-1]), self._settings.fallbacks.get(path[-1])
        for name in (*(virtual.models if virtual else ()), *(fallback.models if fallback else ())):
            if name in path:
                loop = " -> ".join((*path[path.index(name) :], name))
                raise ValueError(f"a model must not lead back to itself: {loop}")
            if name not in self._harmless:
                self._refuse_loop((*path, name))
        self._harmless.add(path[-1])

    def _refuse_nesting(self, name: str) -> None:
        entries = self._settings.names[name].models
        nested = next((entry for entry in entries if len(entries) > 1 and len(self._first(entry)) > 1), None)
        if nested is not None:
            raise ValueError(f"models.{name}: '{nested}' is a list itself; name its models instead")
