"""Share trees as the policy wants them: weights, caps, slack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.core.fairness import ShareTree
from headrace.core.settings import FairnessSettings, PolicyName
from headrace.core.ticket import Call
from headrace.model import ServiceClass

if TYPE_CHECKING:
    from headrace.core.instance_state import InstanceState


class PlantTree:
    """Makes the share tree of a pool as the policy wants it."""

    def __init__(self, settings: FairnessSettings) -> None:
        self._fairness = settings

    def __call__(self) -> ShareTree[Call]:
        """A new, empty tree."""
        slack = self._fairness.slack if self._fairness.policy == "fair" else 1.0
        return ShareTree(self._weight, self._cap, slack, _bound, self._fairness.policy is PolicyName.FIFO)

    def _weight(self, path: tuple[str, ...]) -> float:
        fairness = self._fairness
        if len(path) == 1:
            return fairness.class_weights.get(ServiceClass(path[0]), 1.0)
        if len(path) == 2:
            return fairness.tenant_weights.get(path[1], 1.0)
        if len(path) == 3:
            exact = fairness.user_weights.get(f"{path[1]}/{path[2]}")
            return exact if exact is not None else fairness.user_weights.get(path[2], 1.0)
        return 1.0

    def _cap(self, path: tuple[str, ...]) -> int | None:
        return self._fairness.user_in_flight if len(path) == 3 else None


def _bound(call: Call) -> Sequence[InstanceState] | None:
    return call.choices if call.request.only is not None or call.resumes else None
