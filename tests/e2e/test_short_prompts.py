"""Prompts so short that the un-started window never fills: backpressure has to come from the count of requests."""

from __future__ import annotations

import pytest

from tests.e2e.flood import Load
from tests.e2e.flooded import How, seen

SHORT = [
    pytest.param(slots, prompt, output, marks=() if (slots, prompt, output) == (8, 60, 8) else pytest.mark.slow)
    for slots in (4, 8)
    for prompt in (8, 30, 60)
    for output in (8, 24, 48)
]


@pytest.mark.parametrize(("slots", "prompt", "output"), SHORT)
@pytest.mark.parametrize("how", ["fair", "blind"])
def test_short_prompts_wait_in_the_gateway_too(how: How, slots: int, prompt: int, output: int) -> None:
    """Hundreds of them would fit into the un-started window: three wait in the engine at most all the same, the light
    user in the gateway until an answer ends, and hardly a slot is idle for it."""
    load = Load(prompt=prompt, output=output, light_output=8)
    held, given = seen(how, slots, load), seen("pass_through", slots, load)
    light = held.together.light
    assert held.together.all_answered
    assert held.engine.max_waiting <= 3
    assert given.engine.max_waiting > load.flood / 2
    assert max(felt.waited for felt in light) <= slots * held.together.release
    assert held.together.throughput >= (0.97 if output > 8 else 0.9) * given.together.throughput
