"""How equally something was shared, and what most had to bear: the measures that gateway, simulator and bench agree on.

* Jain's index (Jain, Chiu, Hawe, DEC-TR-301, 1984), (sum x)^2 / (n * sum x^2): 1 when all have the same, 1/n when one
  has everything.
* Max-min fair shares by progressive filling (Bertsekas, Gallager, Data Networks, 6.5.2): everybody gets the same until
  they have what they want; what the satisfied do not need goes to the others.
* Percentiles by the nearest rank: a value that occurred, never one in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil


def jain(shares: Iterable[float]) -> float | None:
    """Jain's index of some shares, none of them below 0; None: fewer than two, or all of them 0."""
    count, total, squares = 0, 0.0, 0.0
    for share in shares:
        count += 1
        total += share
        squares += share * share
    return total * total / (count * squares) if count > 1 and squares else None


def max_min_shares(demands: Mapping[str, float], total: float) -> dict[str, float]:
    """What each one gets of `total` when nobody gets more than they ask. Demands may be infinite."""
    shares: dict[str, float] = {}
    left = total
    for place, (name, demand) in enumerate(sorted(demands.items(), key=lambda item: item[1])):
        shares[name] = min(demand, left / (len(demands) - place))
        left -= shares[name]
    return shares


def percentile(ordered: Sequence[float], part: float) -> float:
    """The least of the values, which are in ascending order, that `part` (0 to 1) of them do not exceed.

    Raises IndexError when there are none.
    """
    return ordered[max(0, ceil(part * len(ordered)) - 1)]
