"""The questions that are built in. Each has targets; a scenario in parts (`S5`, `S5-overload`) is asked as one.

S1 a flood against single requests; S2 four callers below and four above their share; S3 interactive against batch; S4
long prompts against long answers; S5 conversations that share prefixes; S6 fast and slow machines; S7 a machine that
refuses fast; S8 a bursty real trace; S9 how many requests in flight are best; S10 several gateways before one machine.
Unless said otherwise a machine is an A100 with an 8B model.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from headrace.core.settings import FairnessSettings, Settings
from headrace.model import ServiceClass
from headrace.sim.profile import A100, H100, SLOW
from headrace.sim.scenario import PATIENT, Machine, Outage, Reference, Scenario, Sense, Target
from headrace.sim.workload import (
    Burst,
    Client,
    ClosedLoop,
    Every,
    Exponential,
    Fixed,
    Poisson,
    Replay,
    Session,
    Uniform,
)

KNEE = 96
"""In-flight requests of S9's flood at which an A100 gives its full output rate: from there on only the pace
suffers."""
_GATEWAYS = 3
SWEEP = (8, 32, 64, 96, 128)
_PROMPT = Uniform(low=500, high=1500)
_ANSWER = Exponential(mean=300, most=4000)
_FULL_RATE = Target(name="throughput", metric="output_rate", limit=0.98, sense=Sense.AT_LEAST, of=Reference())


def _one(limit: int | None = None) -> tuple[Machine, ...]:
    return (Machine(name="a100", limit=limit),)


def _flood(name: str, limit: int | None, targets: tuple[Target, ...]) -> Scenario:
    return Scenario(
        name=name,
        title="flood against a single request",
        machines=_one(limit),
        clients=(
            Client(name="power", arrivals=Burst(count=1500), prompt=_PROMPT, output=_ANSWER),
            Client(
                name="single", arrivals=Every(seconds=10, start=10), prompt=Fixed(tokens=500), output=Fixed(tokens=150)
            ),
        ),
        duration=95,
        targets=targets,
    )


def _s1() -> Scenario:
    return _flood(
        "S1",
        None,
        (
            Target(name="ttft_p99", metric="ttft_p99[single]", limit=0.5),
            Target(name="wait_p99", metric="wait_p99[single]", limit=0.3),
            _FULL_RATE,
            Target(name="refused", metric="failed", limit=0),
        ),
    )


def _s2(name: str, limit: int | None, longest: float, fifo: str) -> Scenario:
    above = tuple(
        Client(name=f"above-{rate}", group="above", arrivals=Poisson(rate=rate), prompt=_PROMPT, output=_ANSWER)
        for rate in (3, 4, 5, 6)
    )
    below = Client(name="below", users=4, arrivals=Poisson(rate=0.4), prompt=_PROMPT, output=_ANSWER)
    return Scenario(
        name=name,
        title="four below, four above their share",
        machines=_one(limit),
        clients=(*above, below),
        duration=150,
        warm_up=30,
        contenders="above",
        targets=(
            Target(name="jain", metric="jain", limit=0.99, sense=Sense.AT_LEAST),
            Target(name="service_difference", metric="service_difference", limit=20_000),
            Target(name="ttft_p50", metric="ttft_p50[below]", limit=0.35),
            Target(name="ttft_p99", metric="ttft_p99[below]", limit=longest),
            Target(name="max_min", metric="max_min", limit=0.95, sense=Sense.AT_LEAST),
            replace(_FULL_RATE, limit=0.97, of=Reference(fifo)),
        ),
    )


def _s3() -> Scenario:
    alone = Reference(without=("chat",))
    return Scenario(
        name="S3",
        title="interactive against batch",
        machines=_one(),
        clients=(
            Client(
                name="batch",
                service_class=ServiceClass.BATCH,
                arrivals=Burst(count=3000),
                prompt=Uniform(low=1000, high=3000),
                output=Fixed(tokens=400),
            ),
            Client(
                name="chat",
                service_class=ServiceClass.INTERACTIVE,
                arrivals=Poisson(rate=2),
                prompt=Fixed(tokens=500),
                output=Fixed(tokens=150),
            ),
        ),
        duration=120,
        warm_up=20,
        targets=(
            Target(name="good", metric="good[chat]", limit=0.95, sense=Sense.AT_LEAST),
            Target(name="batch_rate", metric="token_rate[batch]", limit=0.65, sense=Sense.AT_LEAST, of=alone),
            Target(name="batch_floor", metric="least_share[batch]", limit=0.05, sense=Sense.AT_LEAST),
        ),
    )


def _s4() -> Scenario:
    return Scenario(
        name="S4",
        title="long prompts against long answers",
        machines=_one(),
        clients=(
            Client(name="prefill", arrivals=Poisson(rate=6), prompt=Fixed(tokens=6000), output=Fixed(tokens=32)),
            Client(name="decode", arrivals=Poisson(rate=6), prompt=Fixed(tokens=200), output=Fixed(tokens=800)),
        ),
        duration=140,
        warm_up=20,
        targets=(Target(name="jain_gpu", metric="jain_gpu", limit=0.98, sense=Sense.AT_LEAST),),
    )


def _s4_wrong(name: str, ratio: float) -> Scenario:
    """The same, told a price of output tokens that is wrong by a factor of two at first: both get what they got."""
    right = Reference("fair", instead=_s4())
    return replace(
        _s4(),
        name=name,
        title=f"the same, an output token taken for {ratio:g} prompt tokens at first",
        settings=Settings(queue=PATIENT, fairness=FairnessSettings(output_price=ratio)),
        targets=tuple(
            Target(name=f"gpu_{client}", metric=f"gpu_seconds[{client}]", limit=0.9, sense=Sense.AT_LEAST, of=right)
            for client in ("prefill", "decode")
        ),
    )


def _s5(name: str, hot: Client, machines: tuple[Machine, ...], duration: float, least: float) -> Scenario:
    affinity = Reference("pass_through_affinity")
    others = Client(
        name="others",
        users=20,
        arrivals=ClosedLoop(sessions=3, think=3, ramp=3),
        prompt=Uniform(low=100, high=300),
        output=Uniform(low=150, high=350),
        session=Session(shared=512),
    )
    return Scenario(
        name=name,
        title="conversations that share prefixes",
        machines=machines,
        clients=(hot, others),
        duration=duration,
        targets=(
            Target(name="hit_rate", metric="hit_rate", limit=least, sense=Sense.AT_LEAST, of=affinity),
            Target(name="turns", metric="answered", limit=0.97, sense=Sense.AT_LEAST, of=affinity),
            *((Target(name="ttft_p99", metric="ttft_p99[others]", limit=1.0),) if name != "S5" else ()),
        ),
    )


def _s5_parts() -> tuple[Scenario, ...]:
    hot = Client(
        name="hot",
        arrivals=ClosedLoop(sessions=100, think=3, ramp=3),
        prompt=Uniform(low=100, high=300),
        output=Uniform(low=150, high=350),
        session=Session(shared=512),
    )
    rush = msgspec.structs.replace(hot, arrivals=ClosedLoop(sessions=400, ramp=3))
    narrow = msgspec.structs.replace(A100, max_seqs=64)
    calm = tuple(Machine(name=f"a100-{n}", prefix_tokens=120_000) for n in range(1, 5))
    full = tuple(Machine(name=f"a100-{n}", profile=narrow, prefix_tokens=120_000) for n in range(1, 5))
    return _s5("S5", hot, calm, 150, 0.95), _s5("S5-overload", rush, full, 120, 0.9)


def _s6() -> Scenario:
    """At half load. Equal use of all machines is no target: it costs users time that the fast ones could save them."""
    fleet = (
        Machine(name="h100", profile=H100),
        Machine(name="a100-1"),
        Machine(name="a100-2"),
        Machine(name="slow", profile=SLOW),
    )
    user = Client(
        name="user",
        users=40,
        arrivals=Poisson(rate=28 / 40),
        prompt=Fixed(tokens=800),
        output=Exponential(mean=200, most=4000),
    )
    return Scenario(
        name="S6",
        title="fast and slow machines",
        machines=fleet,
        clients=(user,),
        duration=140,
        warm_up=20,
        targets=(
            Target(name="ttft_p99", metric="ttft_p99", limit=0.6, of=Reference()),
            Target(name="tpot_worst_instance", metric="tpot_worst_instance", limit=0.05),
        ),
    )


def _s7() -> Scenario:
    sick = Machine(name="a100-1", outages=(Outage(start=50, stop=90, retry_after=2),))
    user = Client(
        name="user",
        users=20,
        arrivals=Poisson(rate=1),
        prompt=Fixed(tokens=800),
        output=Exponential(mean=200, most=4000),
    )
    return Scenario(
        name="S7",
        title="a machine that refuses fast",
        machines=(sick, *(Machine(name=f"a100-{number}") for number in (2, 3, 4))),
        clients=(user,),
        duration=140,
        warm_up=20,
        targets=(
            Target(name="errors", metric="errors_in_outage", limit=0),
            Target(name="refused_attempts", metric="refused_attempts", limit=10),
            Target(name="recovery", metric="recovery", limit=15),
        ),
    )


def _s8(name: str, *, hint: bool, heaviest: float) -> Scenario:
    trace = Replay(file="shipped:azure-code-900s.csv.gz", users=50, zipf=1.2, light=30)
    targets = [
        Target(name="light_ttft_p50", metric="ttft_p50[light]", limit=1.0),
        Target(name="light_ttft_p99", metric="ttft_p99[light]", limit=0.4, of=Reference()),
        Target(name="heaviest_ttft_p99", metric="ttft_p99[heaviest]", limit=heaviest, of=Reference()),
    ]
    if hint:
        targets.append(Target(name="all_ttft_p50", metric="ttft_p50", limit=0.35, of=Reference()))
    return Scenario(
        name=name,
        title="a bursty trace of code assistants, users by Zipf's law",
        machines=_one(),
        clients=(Client(name="azure", arrivals=trace, hint=hint),),
        duration=1000,
        targets=tuple(targets),
    )


def _s9() -> Scenario:
    targets = (Target(name="limit_off_knee", metric="limit_off_knee", limit=0.2),)
    return replace(_flood("S9", None, targets), title="how many in flight", knee=KNEE)


def _s10(name: str, title: str, gateways: int, doors: int | None, targets: tuple[Target, ...]) -> Scenario:
    """Two users with the same flood; one enters through all gateways, the other through `doors` of them."""
    flood = Client(name="wide", arrivals=Burst(count=1500), prompt=Fixed(tokens=1000), output=_ANSWER)
    return Scenario(
        name=name,
        title=title,
        machines=_one(KNEE),
        gateways=gateways,
        clients=(flood, msgspec.structs.replace(flood, name="narrow", gateways=doors)),
        duration=120,
        targets=targets,
    )


def _s10_parts() -> tuple[Scenario, ...]:
    """What fixed parts cost: no throughput, and in fairness no more than the bound of `gateways`."""
    uneven = Target(name="most_to_least", metric="most_to_least", limit=2 * _GATEWAYS - 1 + 0.25)
    even = Target(name="most_to_least", metric="most_to_least", limit=1.05)
    single = _s10("S10-single", "the same at one gateway", 1, None, (even,))
    full = replace(_FULL_RATE, of=Reference("fair", instead=single))
    title = f"{_GATEWAYS} gateways, one user at all of them, one at a single one"
    return (
        _s10("S10", title, _GATEWAYS, 1, (uneven, full)),
        _s10("S10-spread", f"{_GATEWAYS} gateways, both users at all of them", _GATEWAYS, None, (even, full)),
        single,
    )


def _built() -> dict[str, tuple[Scenario, ...]]:
    return {
        "S1": (_s1(),),
        "S2": (_s2("S2", None, 2.0, "pass_through"), _s2("S2-96", KNEE, 3.0, "fifo")),
        "S3": (_s3(),),
        "S4": (_s4(), _s4_wrong("S4-half", 1.0), _s4_wrong("S4-double", 4.0)),
        "S5": _s5_parts(),
        "S6": (_s6(),),
        "S7": (_s7(),),
        "S8": (_s8("S8", hint=False, heaviest=1.5), _s8("S8-hints", hint=True, heaviest=2.0)),
        "S9": (_s9(), *(_flood(f"S9-{limit}", limit, ()) for limit in SWEEP)),
        "S10": _s10_parts(),
    }


SCENARIOS = _built()
"""Name -> its parts, the main one first."""
