"""A gateway over engines that a test plays by hand: attempts are noted, and nothing happens until the test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from headrace.core.scheduler import Scheduler
from headrace.core.settings import Settings
from headrace.model import AnswerForm, Cause, Decision, Dispatch, Event, Flow, Instance, Outcome, Request, Usage
from headrace.runtime.backend import Port
from headrace.runtime.gateway import Gateway
from headrace.runtime.reply import Reply
from headrace.runtime.stores.keeping import Keeping
from headrace.runtime.stores.memory import MemoryCache, MemoryDeadLetters
from headrace.wire.frames import Frame
from tests.runtime.caller import Caller

OK = Outcome(Cause.OK, usage=Usage(1, 2), committed=True, status=200)
DOWN = Outcome(Cause.CONNECT, detail="refused")


class Attempt:
    """One attempt, as the engine's side sees it."""

    def __init__(self, dispatch: Dispatch, port: Port) -> None:
        self.dispatch = dispatch
        self.port = port
        self.calls: list[str] = []

    @property
    def aborted(self) -> bool:
        return "abort" in self.calls

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def abort(self) -> None:
        self.calls.append("abort")

    def say(self, *pieces: bytes) -> None:
        """Begin to answer."""
        self.port.started()
        for piece in pieces:
            self.port.feed(Frame(piece))

    def finish(self, *pieces: bytes, outcome: Outcome = OK) -> None:
        """Say the last pieces and end."""
        for piece in pieces:
            self.port.feed(Frame(piece))
        self.port.finished(outcome)

    def answer(self, *pieces: bytes) -> None:
        """A whole good answer."""
        self.say(*pieces)
        self.finish()


class Engines:
    """All engines of a gateway. `script`: what happens inside `start`, if anything."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.script: Callable[[Attempt], None] | None = None

    def start(self, dispatch: Dispatch, port: Port) -> Attempt:
        attempt = Attempt(dispatch, port)
        self.attempts.append(attempt)
        if self.script is not None:
            self.script(attempt)
        return attempt


class Payload:
    """What a caller sent."""

    def __init__(self, body: bytes = b"{}") -> None:
        self.body = body


class Bench:
    """A gateway, its engines, and everything an observer saw. `clock`: the loop's when None."""

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        instances: int = 1,
        limit: int = 10,
        keeping: Keeping = Keeping.WHOLE,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.engines = Engines()
        self.letters = MemoryDeadLetters()
        self.cache = MemoryCache(Random(0))
        self.seen: list[tuple[Event, Sequence[Decision]]] = []
        pool = [Instance(id=f"gpu-{number}", max_concurrent=limit) for number in range(1, instances + 1)]
        self.gateway = Gateway(
            Scheduler(settings or Settings(), pool, Random(0)),
            lambda _: self.engines,
            dead_letters=self.letters,
            cache=self.cache,
            clock=clock,
            wall=lambda: 1_000_000.0,
            keeping=keeping,
            observers=[lambda event, decisions, _: self.seen.append((event, tuple(decisions)))],
        )

    @property
    def facts(self) -> list[str]:
        """The kinds of the facts so far, in the order in which they were decided."""
        return [type(event).__name__ for event, _ in self.seen]

    def ask(self, name: str, caller: Caller | None = None, **fields: object) -> tuple[Caller, Reply]:
        """Open a request for the model `m`."""
        caller = caller or Caller()
        reply = self.gateway.open(request(name, **fields), caller)
        caller.resume = reply.resume
        return caller, reply

    def assert_empty(self) -> None:
        """Nothing is held for anybody."""
        gateway, snapshot = self.gateway, self.gateway.snapshot()
        assert gateway.alive == 0
        assert gateway.flights == 0
        assert (snapshot.queued, snapshot.running, snapshot.waiting_retry, snapshot.looking) == (0, 0, 0, 0)
        assert [view.in_flight for view in snapshot.instances] == [0] * len(snapshot.instances)
        assert [view.unstarted_tokens for view in snapshot.instances] == [0] * len(snapshot.instances)
        totals = snapshot.totals
        ended = sum(totals.get(name, 0) for name in ("answered", "failed", "cancelled"))
        assert totals.get("accepted", 0) == ended, "accepted = answered + failed + cancelled"


def request(name: str, **fields: object) -> Request:
    """A streamed request of alice's for the model `m`, with whatever fields the test cares for."""
    values: dict[str, object] = {"flow": Flow(user="alice"), "model": "m", "form": AnswerForm.STREAM}
    values |= {"payload": Payload(), **fields}
    return Request(id=name, **values)  # type: ignore[arg-type]
