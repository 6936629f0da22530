"""Whether users got what a fair endpoint would have given them.

Service is measured in weighted tokens: prompt tokens once, answer tokens `OUTPUT_WEIGHT` times, since they cost more.

* Jain's index over the service of those users who wanted more than they got: who wanted little cannot be compared so.
* The same over (service / max-min fair share of the total) for all users: 1 when nobody was held below what they
  could have had out of the same total.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.yardsticks import jain, max_min_shares

OUTPUT_WEIGHT = 2.0
"""Service of an answer's token, where a prompt's token is 1; the same weights as the gateway's own accounts."""


def jain_max_min(received: Mapping[str, float], demands: Mapping[str, float]) -> float | None:
    """Jain's index of received / max-min fair share, over the users that wanted anything; None for fewer than two."""
    shares = max_min_shares(demands, sum(received.values()))
    return jain([received[name] / share for name, share in shares.items() if share > 0])
