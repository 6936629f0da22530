"""Who asks for what, and where it can be answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from headrace.model.kinds import AnswerForm, Engine, ServiceClass, Tier


class Flow(NamedTuple):
    """A path in the share tree: whose request this is, from the widest to the narrowest account."""

    service_class: ServiceClass = ServiceClass.NORMAL
    tenant: str = "default"
    user: str = "anonymous"
    session: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model name, or a pattern with one or more `*`, that an instance answers to.

    `upstream` is the name sent to the engine; None sends the asked name. A `*` in `upstream` stands for what the first
    `*` of `name` matched.
    """

    name: str
    upstream: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One engine that answers requests. Its moving state is `core.fleet.InstanceState`."""

    id: str
    address: str = ""
    engine: Engine = Engine.OPENAI
    models: tuple[ServedModel, ...] = (ServedModel(name="*"),)
    tier: Tier = Tier.LOCAL
    capacity: float = 1.0
    max_concurrent: int = 10
    adaptive: bool = False
    """The in-flight limit is found between 1 and `max_concurrent`."""
    window_tokens: int | None = None
    """Most prompt tokens sent and not yet begun to be answered; None: no such window (cloud providers, in-process)."""
    weight: float = 1.0
    api_key_env: str | None = None
    metrics: str | None = None
    """Where its own metrics are: a path at its address, or a URL; None: the engine's usual place."""
    forward_priority: bool = False
    """The engine is told how urgent each request is, in its own field and polarity."""
    resume: bool = False
    """It can be given the beginning of an answer and goes on from there: what breaks off here may go on at another
    instance of this kind, and the other way round."""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])


class Request(Struct, frozen=True, kw_only=True, gc=False):
    """What is asked, as far as deciding needs to know. The core never opens `payload`."""

    id: str
    flow: Flow
    model: str
    endpoint: str = "chat"
    prompt_tokens: int = 1
    """Estimate of the prompt's length in tokens."""
    output_cap: int | None = None
    """The caller's own bound on the answer, in tokens."""
    form: AnswerForm = AnswerForm.WHOLE
    deadline: float | None = None
    """Absolute, on the scheduler's clock. Nothing of this request is done after it."""
    queue_timeout: float | None = None
    """Longest wait in the queue in seconds; None: the class's default."""
    max_attempts: int | None = None
    """Bound on attempts; None: the configured one."""
    only: str | None = None
    """The id of the one instance that may answer; None: any that serves the model. Such a request shares no call."""
    letter: int | None = None
    """The dead letter that is sent again; when this fails there is no second one. None: a request of its own."""
    fingerprint: bytes | None = None
    """Key of single-flight and cache; None: this request is never shared."""
    look_up: bool = False
    """May be answered from the cache."""
    remember: bool = False
    """A finished answer may be stored in the cache."""
    prefix: tuple[int, ...] = ()
    """Hashes of the prompt's blocks, each covering all before it, salted by tenant: who may share what was read."""
    prefix_block: int = 0
    """Tokens of one block."""
    payload: object = None

    def __repr__(self) -> str:
        """Without the payload: prompts do not belong into logs."""
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__ if name != "payload")
        return f"Request({', '.join(f'{name}={value!r}' for name, value in fields)})"


class Usage(Struct, frozen=True, gc=False):
    """Tokens an attempt consumed. `estimated` marks counts that the engine did not report."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    estimated: bool = False
