"""The words headrace speaks: frozen values that pass between its rooms.

Facts (`Event`) go into the scheduler, orders (`Decision`) come out. Everything here is a value: it holds no
clock, no socket and no behaviour beyond reading itself. Times are seconds on the scheduler's monotonic clock
unless a name says `wall`; tokens are counts; money is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headrace.errors import Fault

# --------------------------------------------------------------------------------------------- who and what


class ServiceClass(StrEnum):
    """How urgent a request is; the first level of the share tree."""

    INTERACTIVE = "interactive"
    NORMAL = "normal"
    BATCH = "batch"

    @property
    def rank(self) -> int:
        """0 for the most urgent."""
        return _CLASS_RANK[self]


_CLASS_RANK = {ServiceClass.INTERACTIVE: 0, ServiceClass.NORMAL: 1, ServiceClass.BATCH: 2}


class Flow(NamedTuple):
    """A path in the share tree: whose request this is, from the widest to the narrowest account."""

    service_class: ServiceClass = ServiceClass.NORMAL
    tenant: str = "default"
    user: str = "anonymous"
    session: str = ""


class Tier(StrEnum):
    """Where an instance stands: local ones are used while any of them can still take the request."""

    LOCAL = "local"
    REMOTE = "remote"


class Engine(StrEnum):
    """What software answers behind an address; picks the wire adapter."""

    OPENAI = "openai"
    VLLM = "vllm"
    LLAMACPP = "llamacpp"
    SGLANG = "sglang"
    TGI = "tgi"
    TENSORRT = "tensorrt"
    OLLAMA = "ollama"
    LMSTUDIO = "lmstudio"
    ECHO = "echo"
    WORKER = "worker"


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


class AnswerForm(StrEnum):
    """How an answer travels: as a stream of frames, or whole."""

    STREAM = "stream"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
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
    payload: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens an attempt consumed. `estimated` marks counts that the engine did not report."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    estimated: bool = False


# --------------------------------------------------------------------------------------------- how things end


class OutcomeKind(StrEnum):
    """Whether an attempt speaks for its instance, against it, or says nothing about it."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"


class Cause(StrEnum):
    """Why an attempt ended as it did."""

    OK = "ok"
    CONNECT = "connect"
    TIMEOUT = "timeout"
    SERVER_ERROR = "server_error"
    BROKEN_STREAM = "broken_stream"
    PROTOCOL = "protocol"
    RATE_LIMITED = "rate_limited"
    REJECTED = "rejected"
    UPSTREAM_AUTH = "upstream_auth"
    ABORTED = "aborted"

    @property
    def kind(self) -> OutcomeKind:
        """The verdict on the instance; 429 and overload are judged by cooldown, not by the breaker."""
        if self is Cause.OK:
            return OutcomeKind.SUCCESS
        return OutcomeKind.NEUTRAL if self in _NEUTRAL else OutcomeKind.FAILURE


_NEUTRAL = frozenset({Cause.RATE_LIMITED, Cause.REJECTED, Cause.UPSTREAM_AUTH, Cause.ABORTED})


class FallbackCause(StrEnum):
    """Why another model may take over."""

    EXHAUSTED = "exhausted"
    """No instance of the model can take the request, or all that could be asked failed."""
    CONTEXT_LENGTH = "context_length"
    """The prompt is too long for the model."""
    CONTENT_FILTER = "content_filter"
    """The provider's filter refused the prompt."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended."""

    cause: Cause
    usage: Usage | None = None
    committed: bool = False
    """A content byte reached the caller: nothing may be retried, at most resumed."""
    retry_after: float | None = None
    """Seconds the instance asked us to stay away."""
    status: int | None = None
    """HTTP status of the engine's answer, if there was one."""
    detail: str = ""
    """For operators and dead letters: no prompt, no key, no address."""
    fault: Fault | None = None
    """What to tell the caller if no further attempt is made; None: derived from the cause."""
    cacheable: bool = True
    """False for an answer that is complete but must not be stored (cut by a length limit)."""
    resumable: bool = False
    """The answer broke off, and all of it that the caller has is known: it could go on from there."""

    @property
    def kind(self) -> OutcomeKind:
        """The verdict on the instance."""
        return self.cause.kind


class Ending(StrEnum):
    """How a ticket ended: exactly one for every request. The label of metrics and the reason of dead letters."""

    ANSWERED = "answered"
    REJECTED = "rejected"
    """The caller's own fault, as the engine saw it (4xx)."""
    CANCELLED = "cancelled"
    # Refused at the door: never accepted.
    RATE_LIMITED = "rate_limited"
    MODEL_NOT_FOUND = "model_not_found"
    DRAINING = "draining"
    BACKPRESSURE = "backpressure"
    CIRCUIT_OPEN = "circuit_open"
    NO_INSTANCE = "no_instance"
    # Accepted, then failed.
    QUEUE_TIMEOUT = "queue_timeout"
    DEADLINE_EXPIRED = "deadline_expired"
    INFERENCE_TIMEOUT = "inference_timeout"
    INFERENCE_FAILURE = "inference_failure"
    STREAM_BROKEN = "stream_broken"
    SHUTTING_DOWN = "shutting_down"


class CacheResult(StrEnum):
    """Where an answer came from; the header `x-headrace-cache`."""

    MISS = "miss"
    JOINED = "joined"
    HIT = "hit"


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One try at one instance, for dead letters and the flight recorder."""

    number: int
    instance: str
    started: float
    ended: float
    cause: Cause
    status: int | None = None
    detail: str = ""
    produced: int = 0
    """Output tokens of this attempt that reached the caller before it broke off."""
    model: str = ""
    """The model that was asked, where it is another than the request names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A request that was not answered, with what is needed to understand and replay it."""

    request: Request
    ending: Ending
    reason: str
    """The ending, or `backpressure:<stage>`."""
    detail: str = ""
    arrived: float
    died: float
    attempts: tuple[AttemptRecord, ...] = ()


# --------------------------------------------------------------------------------------------- facts in


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request stands at the door."""

    request: Request


@dataclass(frozen=True, slots=True)
class Looked:
    """The cache answered a `LookUp`. A store that failed is a miss."""

    call: str
    hit: bool


@dataclass(frozen=True, slots=True)
class Started:
    """The first content byte of an attempt is here."""

    call: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Progressed:
    """An attempt has produced `tokens` more tokens; sent every 32 tokens or 250 ms, not for each."""

    call: str
    attempt: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Sealed:
    """A call's answer grew past what is kept for late joiners: nobody can join it any more."""

    call: str


@dataclass(frozen=True, slots=True)
class Finished:
    """An attempt ended. One with a stale attempt number changes nothing."""

    call: str
    attempt: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The caller of a ticket has gone."""

    ticket: str


@dataclass(frozen=True, slots=True)
class Probed:
    """A health check of an instance ended."""

    instance: str
    healthy: bool
    busy: bool = False
    """It did not answer, but bytes still flow from it: says nothing."""
    definite: bool = False
    """The engine itself said that it is not ready: no further check is waited for."""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What an engine's own metrics said at one poll. None: not reported or not to be trusted, never 0 instead."""

    running: float | None = None
    """Requests in its batch."""
    waiting: float | None = None
    """Requests in its own queue."""
    kv: float | None = None
    """Share of its KV cache in use, 0 to 1."""
    tpot: float | None = None
    """Seconds per output token, the mean since the poll before."""
    preemptions: float | None = None
    """Requests thrown out of its batch since the poll before."""
    kv_tokens: int | None = None
    """Size of its KV cache in tokens."""


@dataclass(frozen=True, slots=True)
class Reported:
    """An engine's metrics were polled. None: absent, garbled or unanswered; nothing is known then."""

    instance: str
    report: EngineReport | None


@dataclass(frozen=True, slots=True)
class Woke:
    """The time asked for by `WakeAt` has come."""


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """The set of instances changed; those with the same id keep what was learned of them."""

    instances: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class Draining:
    """No new work from now on; the running may go on until `until`."""

    until: float


@dataclass(frozen=True, slots=True)
class Drained:
    """An instance is to get no new work, or may have it again; what runs there runs on."""

    instance: str
    draining: bool = True


@dataclass(frozen=True, slots=True)
class Tripped:
    """An instance's breaker was opened by hand."""

    instance: str


@dataclass(frozen=True, slots=True)
class Mended:
    """An instance's breaker was closed by hand: its failures and its cooldown are forgotten."""

    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What took time to find out about an instance, so that the next process need not find it out again."""

    instance: str
    speed: float = 0.0
    """Output tokens per second; 0 while unknown."""
    reliability: float = 1.0
    prefill_seconds: float | None = None
    """Seconds per prompt token; None while unknown."""
    token_seconds: float | None = None
    """Seconds per output token with little load; None while unknown."""
    limit: float | None = None
    """The in-flight limit that was found; None where it is fixed."""
    opens_in: float | None = None
    """Seconds until its open breaker lets a probe through; None: it is closed."""
    wait: float = 0.0
    """What the breaker waits after the next failed probe is twice this; 0: it is closed."""
    cooldown: float = 0.0
    """Seconds for which it is left alone."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """What the process before had learned."""

    learned: tuple[Learned, ...]


Event = (
    Arrived
    | Looked
    | Started
    | Progressed
    | Sealed
    | Finished
    | Cancelled
    | Probed
    | Reported
    | Woke
    | Reconfigured
    | Draining
    | Drained
    | Tripped
    | Mended
    | Recalled
)


# --------------------------------------------------------------------------------------------- orders out


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask the cache for `fingerprint` and report with `Looked`."""

    call: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Join:
    """The ticket was accepted and gets the answer of `call`: what was produced so far, then live."""

    ticket: str
    call: str
    cache: CacheResult = CacheResult.MISS
    """MISS for the ticket that leads, JOINED for one that follows."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the call to an instance now. `waited` is the time in the queue in seconds."""

    call: str
    attempt: int
    instance: Instance
    upstream_model: str
    request: Request
    waited: float
    cause: Cause | None = None
    """Why the attempt before this one failed; None for a first attempt."""
    resumes: int = 0
    """How many times the answer has been taken up again, this time included: the engine is to go on from where it broke
    off. 0: from its beginning."""
    model: str = ""
    """The model it is asked of, which may stand behind the name in the request or have taken over; "": that name."""
    fallback: FallbackCause | None = None
    """Why the model before could not answer; None at the first."""
    hedge: bool = False
    """It runs beside an attempt whose first content is late: of the two, the one that begins first counts."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Close the attempt's connection; its slot is already free."""

    call: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Settle:
    """The ticket's end: tell its caller. `fault` is None exactly when the ending is ANSWERED or CANCELLED."""

    ticket: str
    call: str
    ending: Ending
    fault: Fault | None = None
    cache: CacheResult = CacheResult.MISS
    usage: Usage | None = None
    instance: str = ""
    attempts: int = 0
    resumes: int = 0
    """How many times its answer broke off and was taken up again."""


@dataclass(frozen=True, slots=True)
class Remember:
    """Store the call's finished answer under `fingerprint`."""

    call: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Bury:
    """Keep the request in the dead letter queue."""

    letter: DeadLetter


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Report `Woke` at `when`; replaces an earlier `WakeAt`. None: nothing to wait for."""

    when: float | None


Decision = LookUp | Join | Dispatch | Abort | Settle | Remember | Bury | WakeAt


# --------------------------------------------------------------------------------------------- what can be seen


class BreakerState(StrEnum):
    """closed: in use; open: not asked; half_open: one probe decides."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """An instance's moving state at one moment."""

    id: str
    engine: Engine
    tier: Tier
    models: tuple[str, ...]
    healthy: bool
    draining: bool
    breaker: BreakerState
    breaker_opens_in: float
    cooldown: float
    in_flight: int
    max_concurrent: int
    unstarted_tokens: int
    speed: float
    """Output tokens per second, learned; 0 while unknown."""
    reliability: float
    closed_because: str
    """Why the gate is shut, or ""."""
    metrics_age: float | None = None
    """Seconds since its own metrics last said something usable; None: they never did."""
    metrics_stale: bool = False
    """They are asked for, and what they said is too old to be used or nothing at all."""
    engine_waiting: float | None = None
    """Requests in its own queue, as last reported; None: unknown."""
    engine_kv: float | None = None
    """Share of its KV cache in use, as last reported; None: unknown."""
    closed_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds that something waited while it was shut, by reason; "other": it was open, but not to what waited."""
    load: float = 0.0
    """Sum of the weights of the requests it is working on."""
    breaker_changes: Mapping[BreakerState, int] = field(default_factory=dict[BreakerState, int])
    """How often the breaker went into each state."""
    breaker_for: float = 0.0
    """Seconds since it opened; 0 while it is closed."""
    cooldown_because: str = ""
    """The cause of the attempt that began the cooldown; "" while there is none."""
    cooldown_for: float = 0.0
    """Seconds since the cooldown began."""
    ramp: int | None = None
    """Requests it may have for now, because it has just come back; None: as many as else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the scheduler holds at one moment."""

    now: float
    draining: bool
    queued: int
    queue_size: int
    running: int
    waiting_retry: int
    looking: int
    following: int
    queued_by_class: Mapping[ServiceClass, int]
    queued_by_user: Mapping[str, int]
    """The users with most in the queue (bounded), as `tenant/user`."""
    instances: tuple[InstanceView, ...]
    names: tuple[str, ...] = ()
    """The operator's own names for models."""
    totals: Mapping[str, int]
    """Counts since the start: accepted, refused, answered, failed, cancelled, model_calls, joined, hits, retries, the
    resumes among these, attempts at models that took over (fallbacks), hedges and those that won (hedges_won)."""
    service: Mapping[str, float] = field(default_factory=dict[str, float])
    """What the 20 users served most were charged in about the last minute, in charged tokens, as `tenant/user`."""
    jain: float | None = None
    """Jain's index of the last minute's service of the users who have something queued; None: fewer than two."""
    spread: float = 0.0
    """Largest difference of virtual time between two flows that wait side by side, in charged tokens per weight."""
    spread_seconds: float = 0.0
    """The same in seconds of the pool's capacity; 0 while that is unknown."""
    refunded: float = 0.0
    """Charged in advance and given back since the start, in charged tokens."""
    estimate_error: float | None = None
    """How far the expected length of answers is off of late, as a part of the real one; None: no answer yet."""
