"""What took time to learn about an instance, out of one process and into the next one.

What is believed is brought within the bounds that learning keeps: a file may be damaged, and settings may have changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.model import BreakerState, Learned

if TYPE_CHECKING:
    from headrace.core.instance_state import InstanceState


def learned_of(state: InstanceState, now: float) -> Learned:
    """What is worth knowing of an instance after a restart."""
    gate, breaker = state.gate, state.breaker
    opened = breaker.state(now) is not BreakerState.CLOSED
    return Learned(
        instance=state.instance.id,
        speed=state.speed,
        reliability=state.reliability,
        prefill_seconds=gate.prefill_seconds if gate.prefill_known else None,
        token_seconds=gate.pace.base or None,
        limit=gate.limiter.found,
        opens_in=breaker.opens_in(now) if opened else None,
        wait=breaker.wait if opened else 0.0,
        cooldown=max(0.0, state.cooldown_until - now),
    )


def recall(state: InstanceState, learned: Learned, now: float) -> None:
    """Let an instance begin with what was learned of it before a restart."""
    state.speed = max(0.0, learned.speed)
    state.reliability = min(max(learned.reliability, 0.0), 1.0)
    state.gate.recall(learned.prefill_seconds, learned.token_seconds, learned.limit)
    if learned.opens_in is not None:
        state.breaker.recall(learned.opens_in, learned.wait, now)
    if learned.cooldown > 0:
        state.rest(learned.cooldown, now)
