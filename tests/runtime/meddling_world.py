"""A gateway among engines and callers that do whatever they like in the middle of whatever is going on.

Engines may say everything, or fail, while they are being started or broken off; callers leave, ask again or change the
fleet while they are being told something. Each act is chosen by a number, so that a list of numbers is a whole history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from headrace.core.scheduler import Scheduler
from headrace.core.settings import PolicyName, Strategy
from headrace.errors import Fault, InvalidRequest, invalid_request
from headrace.model import (
    AnswerForm,
    Cause,
    Drained,
    Ending,
    Event,
    Flow,
    Mended,
    Outcome,
    Probed,
    Reconfigured,
    ServiceClass,
    Tripped,
    Usage,
)
from headrace.runtime.answer_head import AnswerHead
from headrace.runtime.gateway import Gateway
from headrace.runtime.relay import KEEP_BYTES
from headrace.runtime.reply import Reply
from headrace.runtime.stores.memory import MemoryCache, MemoryDeadLetters
from headrace.wire.frames import Frame
from tests.core.world_settings import ENGINES, world_settings
from tests.runtime.caller import Caller
from tests.runtime.engines import DOWN, OK, Attempt, Engines, request
from tests.runtime.virtual import later

MOST_CALLERS = 40
_LONG = b"x" * (KEEP_BYTES + 1)
"""A piece that nobody can join after."""
_FLEETS = (ENGINES[:3], ENGINES[3:6], (ENGINES[1], ENGINES[6]), (ENGINES[0],), ())
_MODELS = ("m1", "m2", "else", "one", "far")
_SOON = 0.4
_LATER = (0.0, _SOON, 2.0, 31.0)
_BROKEN = Outcome(Cause.BROKEN_STREAM, usage=Usage(1, 1), committed=True)
OUTCOMES = (
    OK,
    DOWN,
    _BROKEN,
    Outcome(Cause.BROKEN_STREAM, usage=Usage(1, 1), committed=True, resumable=True),
    Outcome(Cause.RATE_LIMITED, status=429, retry_after=1.0),
    Outcome(Cause.REJECTED, status=400),
    Outcome(Cause.TIMEOUT),
    Outcome(Cause.ABORTED),
)


class Meddling(Caller):
    """A caller who does `deed` each time he is told something, as long as the world lets him."""

    def __init__(self, deed: Callable[[], None]) -> None:
        super().__init__()
        self.deed = deed
        self.left = False

    def begin(self, head: AnswerHead) -> None:
        super().begin(head)
        self.deed()

    def write(self, data: bytes) -> bool:
        super().write(data)
        self.deed()
        return len(self.got) % 3 > 0

    def end(self, ending: Ending, fault: Fault | None) -> None:
        super().end(ending, fault)
        self.deed()


class World:
    """The gateway and everybody around it."""

    def __init__(self, strategy: Strategy, policy: PolicyName) -> None:
        self.engines = Engines()
        settings = world_settings(policy, strategy, None, limited=False, led=True)
        self.gateway = Gateway(
            Scheduler(settings, _FLEETS[0], Random(0)),
            lambda _: self.engines,
            dead_letters=MemoryDeadLetters(),
            cache=MemoryCache(Random(0)),
            wall=lambda: 1_000_000.0,
        )
        self.callers: list[tuple[Meddling, Reply]] = []
        self._begun: list[Attempt] = []
        self._depth = 0

    # ------------------------------------------------------------------ acts

    def act(self, number: int) -> None:
        """Do what `number` stands for."""
        kind, which = number % 8, number // 8
        match kind:
            case 0 | 1:
                self.ask(which)
            case 2:
                self.leave(which)
            case 3 | 4:
                self.say(which)
            case 5:
                self.engines.script = self._script(which)
            case 6:
                self.gateway.step(self._fact(which))
            case _:
                self._cancel(which)

    def ask(self, which: int) -> None:
        """Open a request; what its caller does when told something is in the number too."""
        if len(self.callers) >= MOST_CALLERS:
            return
        which, shared = divmod(which, 3)
        which, model = divmod(which, len(_MODELS))
        which, rank = divmod(which, len(ServiceClass))
        which, due = divmod(which, 3)
        caller = Meddling(lambda: self._meddle(which))
        now = asyncio.get_running_loop().time()
        reply = self.gateway.open(
            request(
                ("same", f"r-{len(self.callers)}")[which % 2],
                model=_MODELS[model],
                flow=Flow(list(ServiceClass)[rank], user=f"u{which % 2}"),
                form=AnswerForm.STREAM if which % 4 else AnswerForm.WHOLE,
                fingerprint=(b"", b"1" * 32, b"2" * 32)[shared] or None,
                look_up=bool(which % 3),
                remember=True,
                deadline=now + _SOON if due == 0 else None,
                prompt_tokens=10,
            ),
            caller,
        )
        caller.resume = reply.resume
        self.callers.append((caller, reply))

    def leave(self, which: int) -> None:
        """A caller goes."""
        if self.callers:
            caller, reply = self.callers[which % len(self.callers)]
            caller.left = True
            reply.cancel()

    def say(self, which: int) -> None:
        """An engine goes on, whether or not anybody still listens to it."""
        if self.engines.attempts:
            which, attempt = divmod(which, len(self.engines.attempts))
            self._go_on(self.engines.attempts[attempt], which)

    async def pass_time(self, which: int) -> None:
        """Let timers fire."""
        await later(_LATER[which % len(_LATER)])

    async def over(self) -> None:
        """No more meddling: everybody is sent home."""
        self._depth = 1000
        self.engines.script = None
        await self.gateway.drain(1.0)
        while behind := [caller for caller, _ in self.callers if not (caller.left or caller.endings)]:
            told = sum(len(caller.got) for caller in behind)
            for caller in behind:
                caller.resume()
            if told == sum(len(caller.got) for caller in behind):
                break

    # ------------------------------------------------------------------ inside

    def _cancel(self, which: int) -> None:
        if self.callers:
            reply = self.callers[which % len(self.callers)][1]
            self.gateway.cancel(reply.id, reply.request.flow)

    def _meddle(self, which: int) -> None:
        """What a caller does while he is told something; not without end."""
        if which % 5 and self._depth < 3:
            self._depth += 1
            self.act(which)
            self._depth -= 1

    def _script(self, which: int) -> Callable[[Attempt], None] | None:
        """What engines do from now on while they are being started."""
        how, which = which % 4, which // 4
        if how == 0:
            return None

        def start(attempt: Attempt) -> None:
            self._go_on(attempt, which)
            if how == 1:
                raise InvalidRequest(invalid_request("Not here."))

        return start

    def _go_on(self, attempt: Attempt, which: int) -> None:
        """Begin, say something short or long, count, end: each of these or not."""
        which, kind = divmod(which, 6)
        outcome = OUTCOMES[which % len(OUTCOMES)]
        if kind == 2 or (kind in (0, 1, 4) and outcome.committed):
            self._begin(attempt, _LONG if kind == 1 else b"piece")
        if kind == 3:
            attempt.port.progressed(5)
        if kind not in (2, 3, 5):
            attempt.port.finished(outcome)

    def _begin(self, attempt: Attempt, piece: bytes) -> None:
        if attempt not in self._begun:
            self._begun.append(attempt)
            attempt.port.started()
        attempt.port.feed(Frame(piece))

    def _fact(self, which: int) -> Event:
        which, kind = divmod(which, 5)
        name = ENGINES[which % 3].id
        facts: Sequence[Event] = (
            Reconfigured(_FLEETS[which % len(_FLEETS)]),
            Drained(name, draining=which % 2 == 0),
            Tripped(name),
            Mended(name),
            Probed(name, healthy=which % 2 == 0),
        )
        return facts[kind]
