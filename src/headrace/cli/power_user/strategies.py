"""The four strategies that are compared, the engine they stand before, and who asks it for what."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.bench.lengths import Uniform
from headrace.bench.patterns import User
from headrace.config import Config
from headrace.core.settings import PolicyName
from headrace.model import ServiceClass
from headrace.testing.timing import TimingNumbers

MODEL = "mock"
POWER, LIGHT = "power", ("ann", "ben")
SEED = 10
"""Of prompts, lengths and times: the same under each strategy, and in each run. Chosen as the one of the first twelve
whose gain by backpressure is nearest to their median (15 times; the others lie between 10 and 27)."""
AT_ONCE = 256
"""The gateway's bound on requests at the engine: far above what there are, so that it holds nothing back."""

ENGINE: TimingNumbers = {
    "slots": 8,
    "prefill_tps": 16_000.0,
    "decode_tps": 30.0,
    "batch_slowdown": 0.02,
    "kv_tokens": 131_072,
}
"""Eight requests at a time, about 26 tokens a second for each of them when all slots are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way to schedule, and what there is to say of it in a line."""

    name: str
    where: str
    benefit: str
    limit: str
    policy: PolicyName
    held: bool = False
    """The gateway keeps requests until the engine can begin them: by the un-started window and the engine's metrics."""
    priority: bool = False
    """The light users' requests are marked interactive, and an engine that orders its own queue is told so."""

    def config(self, url: str) -> Config:
        """A gateway like this before the engine at `url`."""
        instance: dict[str, object] = {"id": "engine", "address": url, "engine": "vllm", "models": [MODEL]}
        instance |= {"max_concurrent": AT_ONCE, "forward_priority": self.priority}
        if not self.held:
            instance["window_tokens"] = None
        return Config.model_validate(
            {
                "instances": [instance],
                "scheduling": {"policy": self.policy},
                "metrics": {"enabled": self.held},
                "dead_letters": {"path": None},
            }
        )


FIFO = Strategy(
    name="FIFO",
    where="engine",
    benefit="simple",
    limit="a power user blocks the others",
    policy=PolicyName.FIFO,
)
FORWARDED = Strategy(
    name="fair queue, all forwarded",
    where="gateway",
    benefit="no user blocks another",
    limit="needs a gateway in front; useless alone if everything is forwarded at once",
    policy=PolicyName.FAIR,
)
HELD = Strategy(
    name="fair queue + metric backpressure",
    where="gateway",
    benefit="least waiting inside the engine",
    limit="needs metrics or good estimates",
    policy=PolicyName.FAIR,
    held=True,
)
PRIORITY = Strategy(
    name="fair queue + engine priority",
    where="engine",
    benefit="urgent work overtakes at once",
    limit="no rate control, one engine only",
    policy=PolicyName.FAIR,
    priority=True,
)
STRATEGIES = (FIFO, FORWARDED, HELD, PRIORITY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Who asks: one user for `burst` long texts at once, two for a short one every `apart` seconds on average."""

    burst: int = 40
    apart: float = 1.2
    seconds: float = 8.0
    """So long the light users go on asking."""

    def users(self, *, urgent: bool) -> tuple[User, ...]:
        """The users; `urgent`: the light ones say that somebody waits for each word."""
        power = User(name=POWER, burst=self.burst, at=0.2, prompt=Uniform(500, 900), output=Uniform(32, 48))
        light = User(
            name="light",
            rate=1 / self.apart,
            at=0.2,
            until=self.seconds,
            prompt=Uniform(20, 40),
            output=Uniform(12, 20),
            service_class=ServiceClass.INTERACTIVE if urgent else None,
        )
        return (power, *(replace(light, name=name) for name in LIGHT))
