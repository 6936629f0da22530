"""Whether users got what a fair endpoint would have given them.

Service is measured in weighted tokens: prompt tokens once, answer tokens `OUTPUT_WEIGHT` times, since they cost more.

* Jain's index (Jain, Chiu, Hawe 1984), (sum x)^2 / (n * sum x^2), over the service of those users who wanted more than
  they got: 1 when they were served equally, 1/n when one got everything. Who wanted little cannot be compared so.
* The same over (service / max-min fair share of the total) for all users: 1 when nobody was held below what progressive
  filling (Bertsekas, Gallager, Data Networks, 6.5.2) gives out of the same total.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

OUTPUT_WEIGHT = 2.0
"""Service of an answer's token, where a prompt's token is 1; the same weights as the gateway's own accounts."""


def jain(values: Sequence[float]) -> float | None:
    """Jain's index of what several users got; None for fewer than two or when nobody got anything."""
    squares = sum(value * value for value in values)
    if len(values) < 2 or squares == 0:
        return None
    return sum(values) ** 2 / (len(values) * squares)


def max_min_shares(demands: Mapping[str, float], total: float) -> dict[str, float]:
    """Progressive filling: everybody gets the same until satisfied; what the satisfied do not need goes to the others.

    Args:
        demands: what each user wanted, in service; may be infinite.
        total: the service there was.
    """
    shares: dict[str, float] = {}
    left = total
    for place, (name, demand) in enumerate(sorted(demands.items(), key=lambda item: item[1])):
        shares[name] = min(demand, left / (len(demands) - place))
        left -= shares[name]
    return shares


def jain_max_min(received: Mapping[str, float], demands: Mapping[str, float]) -> float | None:
    """Jain's index of received / max-min fair share, over the users that wanted anything; None for fewer than two."""
    shares = max_min_shares(demands, sum(received.values()))
    return jain([received[name] / share for name, share in shares.items() if share > 0])


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """The smallest of the values, which are in order and not none, that at least `fraction` of them do not exceed."""
    rank = -(-fraction * len(ordered) // 1)
    return ordered[min(len(ordered), max(1, int(rank))) - 1]
