"""Who asks for what, and when: arrival processes, lengths, sessions. All of it can be written in YAML."""

from __future__ import annotations

from math import exp, log
from random import Random
from typing import Annotated

import msgspec

from headrace.model import ServiceClass

Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Natural = Annotated[float, msgspec.Meta(ge=0)]

# --------------------------------------------------------------------------------------------- lengths in tokens


class Fixed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fixed"):
    """Always the same."""

    tokens: Count

    def draw(self, random: Random) -> int:
        """One length; draws nothing."""
        del random
        return self.tokens


class Uniform(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="uniform"):
    """Any length from `low` to `high`."""

    low: Count
    high: Count

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")

    def draw(self, random: Random) -> int:
        """One length."""
        return random.randint(self.low, self.high)


class LogNormal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="lognormal"):
    """Many short ones and a long tail: the logarithm is normal with deviation `sigma`; `most` cuts the tail."""

    mean: Positive
    sigma: Natural = 1.0
    most: Count = 32_768

    def draw(self, random: Random) -> int:
        """One length, at least 1."""
        mu = log(self.mean) - self.sigma**2 / 2
        return max(1, min(self.most, round(exp(random.gauss(mu, self.sigma)))))


class Exponential(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="exponential"):
    """An answer that may end at any token."""

    mean: Positive
    most: Count = 32_768

    def draw(self, random: Random) -> int:
        """One length, at least 1."""
        return max(1, min(self.most, round(random.expovariate(1 / self.mean))))


Lengths = Fixed | Uniform | LogNormal | Exponential

# --------------------------------------------------------------------------------------------- arrivals in seconds


class Poisson(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="poisson"):
    """Independent arrivals, `rate` a second on average, from `start` to `stop`."""

    rate: Positive
    start: Natural = 0.0
    stop: float | None = None


class Every(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="every"):
    """One each `seconds`, the first at `start`."""

    seconds: Positive
    start: Natural = 0.0
    stop: float | None = None


class Burst(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="burst"):
    """`count` requests at once."""

    count: Count
    at: Natural = 0.0


class ClosedLoop(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="closed_loop"):
    """`sessions` callers who each wait for an answer, think (`think` seconds on average), and ask again."""

    sessions: Count
    think: Natural = 0.0
    ramp: Natural = 0.0
    """The sessions begin spread over this time."""


class Replay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="trace"):
    """Arrivals and lengths as they were recorded; the client's own `prompt` and `output` are not used."""

    file: str
    format: str = "azure"
    """azure (CSV), mooncake (JSON Lines with hashed blocks) or headrace (journal)."""
    seconds: float | None = None
    """Only so much of it from its beginning."""
    speed: Positive = 1.0
    """2: twice as fast."""
    users: Count = 1
    """Requests without a user are dealt to so many users..."""
    zipf: Natural = 0.0
    """...the k-th of which gets a part proportional to 1 / k ** zipf; 0: equal parts."""
    light: int = 0
    """Users with at most so many requests are measured as the group `light`, the one with most as `heaviest`."""


Arrivals = Poisson | Every | Burst | ClosedLoop | Replay


class Session(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="session"):
    """A conversation whose context grows: each turn's prompt is all that was said before, then `prompt` new
    tokens."""

    shared: int = 0
    """Tokens that all sessions of the client begin with, such as a system prompt."""
    most: int = 9000
    """A session whose context would grow beyond this begins anew."""


class Client(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of caller."""

    name: str
    group: str = ""
    """Under what name it is measured; else its own."""
    users: Count = 1
    """So many users like this, named `name-1`, `name-2`, ...; each with arrivals of its own."""
    tenant: str = "default"
    service_class: ServiceClass = ServiceClass.NORMAL
    arrivals: Arrivals
    prompt: Lengths = Uniform(low=500, high=1500)
    output: Lengths = Uniform(low=100, high=500)
    session: Session | None = None
    """Only with a closed loop."""
    hint: bool = False
    """Says how long the answer will be (`max_tokens` is what it needs)."""
    cap: Count | None = None
    """`max_tokens`, where there is no hint."""
    deadline: Positive | None = None
    """Seconds after which the answer is worthless."""
    gateways: Count | None = None
    """Enters through so many of the scenario's gateways, by turns; null: through all of them."""
    retries: int = 0
    """How often the client itself tries again after 429 and 5xx, as the official clients do."""

    def names(self) -> list[str]:
        """Its users."""
        return [self.name] if self.users == 1 else [f"{self.name}-{number + 1}" for number in range(self.users)]
