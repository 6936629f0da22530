"""headrace as a library: prompts in, answers out, in this process and without a server.

The same scheduler as behind the server decides: fair queues, single-flight, retries on other workers, breakers, dead
letters. A `Pipeline` belongs to the event loop it is used in.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

from headrace.core.scheduler import Scheduler
from headrace.core.settings import (
    BreakerSettings,
    FairnessSettings,
    LimitSettings,
    PolicyName,
    QueueSettings,
    RecoverySettings,
    RoutingSettings,
    Settings,
    Strategy,
)
from headrace.errors import Draining, HeadraceError, draining, error_for
from headrace.model import AnswerForm, DeadLetter, Ending, Flow, Instance, Request, ServiceClass, Snapshot
from headrace.runtime.backend import Backend, Timeouts
from headrace.runtime.gateway import Gateway, Observer
from headrace.runtime.prompts import Prepared, PromptAnswer, PromptRequest
from headrace.runtime.sharing import DedupMode, DedupScope, Sharing
from headrace.runtime.stages import Assemble, Place, Post, Retrieve, Stage, Stages, StageView, Unserved
from headrace.runtime.stores import letter_of
from headrace.runtime.stores.memory import MemoryCache, MemoryDeadLetters
from headrace.runtime.submissions import DeadLetterQueue, Served, Shed, Submission
from headrace.runtime.text_readers import StreamedText, WholeText
from headrace.runtime.worker_set import AnyWorker, backends, instances
from headrace.wire.prompt_prefix import BLOCK_TOKENS, session_prefix, text_prefix

ENDPOINT = "prompt"
"""What the requests of the library are called where the server's are chat, completions, embeddings."""

_WHOLE: Final = AnswerForm.WHOLE
_ANSWERED: Final = Ending.ANSWERED
_NO_LIMITS = LimitSettings()
_CLOSING = "the pipeline closes"

StrategyName: TypeAlias = Literal["fair_load", "weighted", "least_in_flight", "round_robin", "two_choices"]


class Pipeline:
    """Answers prompts by one or several workers; an async context manager.

    Leaving the block lets running calls end for `grace_seconds`, or ends them at once if an error leaves it.

    Args:
        workers: one worker, several, or several by name. Each is an instance of its own, with its own breaker.
        policy: who goes next: `fair`, `round_robin` or `fifo`.
        strategy: which worker is chosen: `fair_load`, `weighted`, `least_in_flight`, `round_robin`, `two_choices`.
        retries: further attempts after a failed one, on other workers first.
        dedup: whether identical requests share a model call, and among whom (`dedup_scope`).
        ttl_seconds: how long `dedup="full"` remembers an answer.
        queue_size: most requests waiting; one more is shed.
        per_user_queue: most of one user; None: no bound of its own.
        max_concurrent: most calls at one worker at a time.
        breaker_threshold: failures in a row after which a worker is left alone for `recovery_timeout` seconds.
        cooldown_seconds: how long a worker is left alone after a single failure.
        retrieve, assemble, post: hooks around inference, see `stages`.
        weights: shares of users (`user` or `tenant/user`) where they are not equal.
        limits: rate limits on users and tenants.
        dead_letters: most requests kept that were not answered.
        timeouts: of an attempt.
        random: the only source of chance.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    """The one it is used in, from the first time that somebody waits."""

    def __init__(
        self,
        workers: AnyWorker | Sequence[AnyWorker] | Mapping[str, AnyWorker],
        *,
        policy: PolicyName | Literal["fair", "round_robin", "fifo"] = "fair",
        strategy: Strategy | StrategyName = "fair_load",
        retries: int = 2,
        dedup: DedupMode = "off",
        dedup_scope: DedupScope = "tenant",
        ttl_seconds: float = 300.0,
        queue_size: int = 512,
        per_user_queue: int | None = None,
        max_concurrent: int = 10,
        breaker_threshold: int = 5,
        recovery_timeout: float = 60.0,
        cooldown_seconds: float = 5.0,
        retrieve: Retrieve | None = None,
        assemble: Assemble | None = None,
        post: Post | None = None,
        weights: Mapping[str, float] | None = None,
        limits: LimitSettings = _NO_LIMITS,
        dead_letters: int = 1000,
        timeouts: Timeouts | None = None,
        grace_seconds: float = 30.0,
        random: Random | None = None,
    ) -> None:
        random = random or Random()
        queue = QueueSettings(size=queue_size, per_user=per_user_queue or queue_size + 1)
        breaker = BreakerSettings(threshold=breaker_threshold, recovery=recovery_timeout)
        retry = RecoverySettings(max_attempts=1 + retries, cooldown=cooldown_seconds)
        shares = FairnessSettings(policy=PolicyName(policy), user_weights=dict(weights or {}))
        routing = RoutingSettings(strategy=Strategy(strategy))
        rules = Settings(fairness=shares, queue=queue, breaker=breaker, recovery=retry, routing=routing, limits=limits)
        self._sharing, self._stages = Sharing(dedup, dedup_scope), Stages(retrieve, assemble, post)
        self._letters, self._grace, self._salt = MemoryDeadLetters(dead_letters), grace_seconds, random.randbytes(16)
        self._backends = backends(workers, timeouts or Timeouts())
        scheduler = Scheduler(rules, instances(self._backends, max_concurrent), random)
        cache = MemoryCache(random, ttl=ttl_seconds) if dedup == "full" else None
        self._gateway = Gateway(scheduler, self._backend, cache=cache, dead_letters=self._letters)
        self._names, self._tasks = _names(random), dict[asyncio.Task[PromptAnswer], Place]()

    @property
    def dlq(self) -> DeadLetterQueue:
        """Requests that were not answered."""
        return DeadLetterQueue(self._letters)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(self._grace if kind is None else 0.0)

    async def close(self, grace_seconds: float = 0.0) -> None:
        """Take no new requests, answer the waiting ones at once, end the running after `grace_seconds` at the latest.

        What is not answered becomes a dead letter with the reason `shutting_down`.
        """
        await self._gateway.drain(grace_seconds)
        in_hooks = tuple(self._tasks)
        for task in in_hooks:
            task.cancel(_CLOSING)
        if in_hooks:
            await asyncio.wait(in_hooks)
        await self._gateway.close()
        for backend in self._backends.values():
            await backend.close()

    # ------------------------------------------------------------------ asking

    async def submit(self, request: PromptRequest) -> PromptAnswer:
        """The answer to `request`. Cancelling the caller cancels the request.

        Raises:
            HeadraceError: there is no answer; the class says whose fault it is. The request is in `dlq`, unless the
                fault is the caller's own.
        """
        stages = self._stages
        if stages.any:
            return await self._serve(request, self._enter(stages.input, request))
        reader = WholeText()
        self._open(request, request, reader, _WHOLE, _deadline(request))
        try:
            if reader.ending is None:
                await reader.waiter(self._loop or self._first_look())
            return reader.answer()
        finally:
            reader.cancel()

    def try_submit(self, request: PromptRequest) -> Submission:
        """Take or shed `request`, at once: nothing is waited for.

        The result says whether it was accepted, and can be awaited for the answer. A shed request is a dead letter with
        the reason `backpressure:<stage>`.
        """
        if not self._stages.any:
            reader = WholeText()
            self._open(request, request, reader, _WHOLE, _deadline(request))
            reader.accepted = reader.ending is None or reader.ending is _ANSWERED
            return reader
        try:
            place = self._enter(self._stages.input, request)
        except HeadraceError as error:
            return Shed(error)
        task = asyncio.get_running_loop().create_task(self._serve(request, place))
        self._tasks[task] = place
        task.add_done_callback(self._served)
        return Served(task)

    async def stream(self, request: PromptRequest) -> AsyncGenerator[str, None]:
        """The answer's text as it comes; one who joins a shared answer late gets it from its beginning.

        Leaving the loop cancels the request. A reader that falls behind slows the worker down. With a `post` hook there
        is one piece, since the hook works on whole answers.

        Raises:
            HeadraceError: as `submit`, also in the middle of an answer that breaks off.
        """
        if self._stages.after:
            yield (await self.submit(request)).text
            return
        arrived, deadline, reader = _now(), _deadline(request), StreamedText()
        place = self._enter(self._stages.stream, request)
        try:
            prompt = request
            if self._stages.before:
                prompt = await self._stages.prepare(request, self._stages.input.enter(), deadline)
            self._open(request, prompt, reader, AnswerForm.STREAM, deadline)
            while (piece := await reader.next()) is not None:
                yield piece
        except Unserved as end:
            raise self._unserved(request, end, arrived) from end.__cause__
        finally:
            reader.leave()
            place.leave()

    # ------------------------------------------------------------------ looking

    def snapshot(self) -> Snapshot:
        """What the scheduler holds now, and what it has counted."""
        return self._gateway.snapshot()

    @property
    def stages(self) -> tuple[StageView, ...]:
        """How full each stage is, in the order of a request's way."""
        snapshot = self._gateway.snapshot()
        return self._stages.views(StageView("inference", snapshot.queued, snapshot.queue_size))

    def on(self, observer: Observer) -> None:
        """Let `observer` see every fact with the decisions that followed. It must neither raise nor wait."""
        self._gateway.observe(observer)

    # ------------------------------------------------------------------ inside

    def _open(
        self,
        asked: PromptRequest,
        prompt: PromptRequest,
        reader: WholeText | StreamedText,
        form: AnswerForm,
        deadline: float | None,
    ) -> None:
        """Hand `prompt`, which was made of `asked`, to the gateway."""
        full, flow = self._sharing.mode == "full", _flow(asked)
        prefix, block = self._prefix(prompt, flow) if self._gateway.weighs_prefix(prompt.model) else ((), 0)
        request = Request(
            id=asked.request_id or next(self._names),
            flow=flow,
            model=prompt.model,
            endpoint=ENDPOINT,
            prompt_tokens=prompt.tokens,
            output_cap=prompt.max_tokens,
            form=form,
            deadline=deadline,
            fingerprint=self._sharing.fingerprint(flow, prompt),
            look_up=full,
            remember=full,
            prefix=prefix,
            prefix_block=block,
            payload=prompt if prompt is asked else Prepared(prompt, asked),
        )
        reader.reply = self._gateway.open(request, reader)

    def _prefix(self, prompt: PromptRequest, flow: Flow) -> tuple[tuple[int, ...], int]:
        """The prompt's beginning and the tokens of its blocks, where it matters which worker has read it before."""
        chain = text_prefix(prompt.input.encode(errors="replace"), flow.tenant, prompt.model, self._salt)
        if chain:
            return chain, BLOCK_TOKENS
        if flow.session:
            return session_prefix(flow.tenant, flow.user, flow.session, self._salt), prompt.tokens
        return (), 0

    async def _serve(self, request: PromptRequest, place: Place) -> PromptAnswer:
        """Take `request`, which has a place in `input`, through all stages."""
        arrived, deadline, reader = _now(), _deadline(request), WholeText()
        try:
            prompt = await self._stages.prepare(request, place, deadline)
            self._open(request, prompt, reader, _WHOLE, deadline)
            return await self._stages.finish(await reader, deadline)
        except Unserved as end:
            raise self._unserved(request, end, arrived) from end.__cause__
        except Draining:
            if reader.ending is Ending.DRAINING:
                # For the gateway it was never accepted; here it was.
                self._unserved(request, _shutting_down(), arrived)
            raise
        except asyncio.CancelledError as cancelled:
            if cancelled.args == (_CLOSING,):
                raise self._unserved(request, _shutting_down(), arrived) from None
            raise
        finally:
            reader.cancel()

    def _first_look(self) -> asyncio.AbstractEventLoop:
        """The running loop, looked up once: that is a system call."""
        self._loop = asyncio.get_running_loop()
        return self._loop

    def _backend(self, instance: Instance) -> Backend:
        return self._backends[instance.id]

    def _enter(self, stage: Stage, request: PromptRequest) -> Place:
        """A place in `stage`; where there is none, the request is shed."""
        try:
            return stage.enter()
        except Unserved as end:
            raise self._unserved(request, end, _now()) from None

    def _unserved(self, request: PromptRequest, end: Unserved, arrived: float) -> HeadraceError:
        """Keep a request that ended in a stage as a dead letter; returns what its caller is told."""
        flow = _flow(request)
        name = request.request_id or next(self._names)
        asked = Request(id=name, flow=flow, model=request.model, endpoint=ENDPOINT)
        letter = DeadLetter(
            request=asked, ending=end.ending, reason=end.reason, detail=end.detail, arrived=arrived, died=_now()
        )
        self._letters.add(letter_of(letter, time.time(), request.body))
        return error_for(end.fault)

    def _served(self, task: asyncio.Task[PromptAnswer]) -> None:
        self._tasks.pop(task).leave()
        if not task.cancelled():
            task.exception()  # looked at: whoever wants it awaits the submission


def _names(random: Random) -> Iterator[str]:
    """Names for requests that have none, unlike those of other pipelines."""
    return map(f"{random.getrandbits(32):08x}-{{}}".format, itertools.count(1))


def _flow(request: PromptRequest) -> Flow:
    service_class = request.service_class
    if type(service_class) is not ServiceClass:  # its name alone will do as well
        service_class = ServiceClass(service_class)
    return Flow(service_class, request.tenant, request.user, request.session)


def _deadline(request: PromptRequest) -> float | None:
    return None if request.deadline_secs is None else _now() + request.deadline_secs


def _now() -> float:
    return asyncio.get_running_loop().time()


def _shutting_down() -> Unserved:
    fault = draining()
    return Unserved(Ending.SHUTTING_DOWN, Ending.SHUTTING_DOWN.value, fault.message, fault)
