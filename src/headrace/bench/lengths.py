"""How long prompts and answers are: a fixed number of tokens, or one drawn anew for each request."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from random import Random

LONGEST = 131_072
"""Most tokens of one prompt or answer."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    tokens: int

    def draw(self, random: Random) -> int:
        """The length in tokens; draws nothing."""
        del random
        return self.tokens

    def __str__(self) -> str:
        return str(self.tokens)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Any length from `low` to `high` tokens."""

    low: int
    high: int

    def draw(self, random: Random) -> int:
        """One length in tokens."""
        return random.randint(self.low, self.high)

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Many short ones and a long tail, `mean` tokens on average; `sigma` is the deviation of the logarithm."""

    mean: float
    sigma: float = 1.0

    def draw(self, random: Random) -> int:
        """One length in tokens, from 1 to `LONGEST`."""
        middle = log(self.mean) - self.sigma**2 / 2
        return max(1, min(LONGEST, round(exp(random.gauss(middle, self.sigma)))))

    def __str__(self) -> str:
        return f"about {self.mean:g}"


Lengths = Fixed | Uniform | LogNormal


def read_lengths(text: str) -> Lengths:
    """`400`, `100-900` (or `uniform:100:900`), `lognormal:400` or `lognormal:400:0.8`.

    Raises ValueError with a sentence about what is wrong.
    """
    kind, *numbers = text.split(":")
    if not numbers:
        low, dash, high = text.partition("-")
        return _uniform(low, high) if dash else Fixed(_tokens(low))
    if kind == "fixed" and len(numbers) == 1:
        return Fixed(_tokens(numbers[0]))
    if kind == "uniform" and len(numbers) == 2:
        return _uniform(*numbers)
    if kind == "lognormal" and len(numbers) <= 2:
        sigma = float(numbers[1]) if len(numbers) == 2 else 1.0
        if not 0 <= sigma <= 4:
            raise ValueError("the deviation of a lognormal length is from 0 to 4")
        return LogNormal(_tokens(numbers[0]), sigma)
    raise ValueError(f"'{text}' is no length; write 400, 100-900 or lognormal:400:0.8")


def _uniform(low: str, high: str) -> Uniform:
    found = Uniform(_tokens(low), _tokens(high))
    if found.low > found.high:
        raise ValueError(f"{low}-{high} ends before it begins")
    return found


def _tokens(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= LONGEST:
        raise ValueError(f"'{text}' is no number of tokens from 1 to {LONGEST}")
    return int(text)
