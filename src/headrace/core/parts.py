"""What one of several gateways before the same instances may use of them, where each has a fixed part.

Whole numbers are split by largest remainder, so that together the parts are what was granted; each is at least 1, which
is more than was granted where there are more gateways than places.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.model import Instance


def part_of(total: int, number: int, gateways: int) -> int:
    """The part of `total` that belongs to gateway `number`; all numbers congruent to it mean the same one."""
    least, spare = divmod(total, gateways)
    return max(1, least + (number % gateways < spare))


def part(instance: Instance, number: int, gateways: int) -> Instance:
    """The instance as gateway `number` of so many knows it."""
    window = instance.window_tokens
    return replace(
        instance,
        max_concurrent=part_of(instance.max_concurrent, number, gateways),
        window_tokens=None if window is None else part_of(window, number, gateways),
    )
