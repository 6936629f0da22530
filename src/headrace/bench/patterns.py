"""Who asks for what, and when: the users of a run, as they are written on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from headrace.bench.lengths import Fixed, Lengths, LogNormal, Uniform, read_lengths
from headrace.model import ServiceClass

MOST_AT_ONCE = 1024
"""Bound on one user's requests under way; what is due beyond it waits on the user's side, and the wait counts."""
MOST_USERS = 256
MOST_REQUESTS = 100_000
"""Bound on one user's requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One user's pattern.

    One of three ways to ask: `rate` (independent arrivals, so many a second on average), `burst` (so many requests that
    are all there at `at`), or neither: callers who wait for an answer, think, and ask again. `concurrency` bounds what
    is under way at once; for callers it is their number.
    """

    name: str
    rate: float | None = None
    burst: int | None = None
    concurrency: int | None = None
    think: float = 0.0
    """Seconds between an answer and the next question, on average (exponential)."""
    at: float = 0.0
    """Seconds after the start at which this user begins..."""
    until: float | None = None
    """...and after which there are no new requests."""
    requests: int = MOST_REQUESTS
    """Most requests of this user."""
    prompt: Lengths = Uniform(50, 150)
    output: Lengths = Fixed(64)
    shared: int = 0
    """Tokens that all prompts of this user begin with, such as a system prompt."""
    session: int | None = None
    """Callers hold conversations: each question carries what was said before, until that passes so many tokens."""
    service_class: ServiceClass | None = None
    key_env: str | None = None
    """The environment variable that holds this user's own API key."""

    @property
    def at_once(self) -> int:
        """Most requests under way."""
        if self.concurrency is not None:
            return self.concurrency
        return 1 if self.rate is None and self.burst is None else min(self.burst or MOST_AT_ONCE, MOST_AT_ONCE)

    @property
    def limited(self) -> bool:
        """Whether the number of its requests does not depend on how fast it is answered."""
        return self.rate is not None or self.burst is not None or self.requests < MOST_REQUESTS

    def __str__(self) -> str:
        """The pattern in a few words."""
        if self.rate is not None:
            way = f"{self.rate:g}/s"
        elif self.burst is not None:
            way = f"burst of {self.burst}, {self.at_once} at once"
        else:
            way = f"{self.at_once} at once" + (f", thinks {self.think:g} s" if self.think else "")
        return f"{way}; {self.prompt} in, {self.output} out"


# --------------------------------------------------------------------------------------------- as text


def read_user(text: str) -> tuple[User, ...]:
    """The users that `NAME:key=value,key=value` stands for: one, or `copies` of them named `NAME-1`, `NAME-2`, ...

    Keys are the fields of `User` (`class` for the service class). Raises ValueError with a sentence on what is wrong.
    """
    name, _, rest = text.partition(":")
    name = name.strip()
    if not name or not name.isprintable() or len(name) > 64 or "," in name or "=" in name:
        raise ValueError(f"'{text}': a user is written NAME:key=value,key=value")
    try:
        fields = dict(_field(part.strip()) for part in rest.split(",") if part.strip())
        copies = fields.pop("copies", 1)
        user = replace(User(name=name), **fields)  # type: ignore[arg-type]  # each reader gives its field's type
        _check(user)
    except ValueError as error:
        raise ValueError(f"user {name}: {error}") from None
    if not isinstance(copies, int) or copies == 1:
        return (user,)
    return tuple(replace(user, name=f"{name}-{number}") for number in range(1, copies + 1))


def read_users(texts: Sequence[str]) -> tuple[User, ...]:
    """All the users that are asked for; raises ValueError, also for two of one name or for too many."""
    users = tuple(user for text in texts for user in read_user(text))
    names = [user.name for user in users]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"there are two users named {twice[0]}")
    if len(users) > MOST_USERS:
        raise ValueError(f"{len(users)} users are more than {MOST_USERS}")
    return users


def _field(pair: str) -> tuple[str, object]:
    """A field's name and value from `key=value`."""
    key, equals, value = pair.partition("=")
    if not equals:
        raise ValueError(f"'{pair}' is no key=value")
    if key not in _KEYS:
        raise ValueError(f"'{key}' is no key; there are {', '.join(_KEYS)}")
    name, read = _KEYS[key]
    return name, read(value)


def _check(user: User) -> None:
    if user.rate is not None and user.burst is not None:
        raise ValueError("rate and burst are two ways to ask; make it two users")
    if user.rate is not None or user.burst is not None:
        if user.session is not None:
            raise ValueError("conversations need callers (concurrency), not a rate or a burst")
        if user.think:
            raise ValueError("only callers (concurrency) think between requests")


def _count(text: str, most: int) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ValueError(f"'{text}' is no number from 1 to {most}")
    return int(text)


def _number(text: str, least: float = 0.0) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not isfinite(number) or number < least:
        raise ValueError(f"'{text}' is no number of at least {least:g}")
    return number


def _class(text: str) -> ServiceClass:
    try:
        return ServiceClass(text)
    except ValueError:
        raise ValueError(f"'{text}' is no class; there are {', '.join(ServiceClass)}") from None


_KEYS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "rate": ("rate", lambda text: _number(text, 0.001)),
    "burst": ("burst", lambda text: _count(text, MOST_REQUESTS)),
    "concurrency": ("concurrency", lambda text: _count(text, MOST_AT_ONCE)),
    "think": ("think", _number),
    "at": ("at", _number),
    "until": ("until", _number),
    "requests": ("requests", lambda text: _count(text, MOST_REQUESTS)),
    "prompt": ("prompt", read_lengths),
    "output": ("output", read_lengths),
    "shared": ("shared", lambda text: _count(text, 131_072)),
    "session": ("session", lambda text: _count(text, 131_072)),
    "class": ("service_class", _class),
    "key_env": ("key_env", str),
    "copies": ("copies", lambda text: _count(text, MOST_USERS)),
}

# --------------------------------------------------------------------------------------------- ready-made


def _light(name: str) -> User:
    return User(name=name, rate=0.5, prompt=Uniform(20, 60), output=Fixed(24))


PRESETS: Mapping[str, tuple[User, ...]] = {
    "flood": (
        User(name="flood", concurrency=32, prompt=Uniform(100, 300), output=Fixed(64)),
        _light("light-1"),
        _light("light-2"),
    ),
    "steady": tuple(
        User(name=name, rate=1.0, prompt=LogNormal(120, 0.8), output=LogNormal(48, 0.6))
        for name in ("ann", "ben", "cleo", "dan")
    ),
    "mixed": (
        User(name="chat", concurrency=3, think=1.0, prompt=Uniform(20, 60), output=Uniform(20, 60), session=2000),
        User(name="documents", concurrency=4, prompt=Uniform(1000, 2000), output=Fixed(16)),
        User(name="burst", burst=40, at=5.0, prompt=Uniform(50, 150), output=Fixed(32)),
        User(
            name="batch",
            concurrency=16,
            prompt=Uniform(100, 300),
            output=Uniform(64, 128),
            service_class=ServiceClass.BATCH,
        ),
    ),
}
"""flood: one user asks without end, two now and then. steady: four alike. mixed: talk, long prompts, a burst, batch."""
