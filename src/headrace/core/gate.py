"""Admission to one instance: how much may be at the engine at a time.

Gates that need nothing from the engine:

* In flight: at most so many requests, fixed or found (`adaptive.AdaptiveLimit`); batch has a smaller limit of its own.
* Un-started window: prompt tokens sent and not yet begun to be answered are at most `window` (one and a half
  prefill budgets of the engine, 3,072 by default). It is what `num_requests_waiting` would say, with no delay: a
  burst cannot slip in between two polls. One request always fits into an empty window, however long it is. A whole (not
  streamed) answer shows no first token, so its reservation lapses after the time its prefill should take.
* Pending: of short prompts many fit into the window. So no more requests than the engine's queue may hold are sent and
  not begun, or an eighth of what the engine has shown to run at a time (`breadth.Breadth`), where all that is there
  is more than that.

What both of these are for is that a newcomer does not stand behind much that nobody can put in another order any more.
"Much" is a matter of time: an engine that finishes everything within moments may have as much as it finishes in one of
them (`turnover.Turnover`).

One place of the engine's queue is kept for guests (`adaptive.GUESTS`), so that who comes into a flood need not wait for
something of it to begin or end.

Where the engine's own metrics are known they tighten this, never loosen it: its queue stays short, its KV cache is not
filled to the brim, nothing of a class is sent while tokens come slower than that class bears, and batch goes only where
the engine's queue is empty.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from headrace.core.adaptive import AdaptiveLimit, BatchLimit
from headrace.core.breadth import Breadth
from headrace.core.engine_view import EngineView
from headrace.core.pace import WINDOW, Pace
from headrace.core.place import Place
from headrace.core.settings import Settings
from headrace.core.shut_times import ShutTimes
from headrace.core.turnover import Turnover
from headrace.model import EngineReport, Instance, ServiceClass, Usage

_BATCH: Final = ServiceClass.BATCH
_FIRST_GUESS = 2e-4
"""Seconds per prompt token before anything was learned: 5,000 tokens/s."""
_FASTEST, _SLOWEST = 1e-5, 5e-2
_FALL, _RISE = 0.25, 0.0005
"""How far a sample moves what is known: most are too long, for the step under way has to end first; now and then one is
too short, for the engine knew more of the prompt than we did."""
_TOGETHER = 0.005
"""First tokens of one step come within this time, in seconds."""
_STEPS_SHARED = 2.0
"""A first token that came within so many steps of the batch says nothing about prefill."""
_LONG_ENOUGH = 32
"""Prompt tokens below which a first token says nothing about prefill."""
_REPORTED = 32
"""Tokens after which a stream reports at the latest."""
_PART_WAITING = 0.125
"""Of what an engine was seen to run, so much may wait there where it tells nothing: a large one fills in seconds."""
_REMEMBERED = 10.0
"""Seconds a class is protected after it was last seen."""


class Gate:
    """The gates of one instance, and what feeds them."""

    __slots__ = (
        "_due",
        "_first",
        "_lapsing",
        "_may_wait",
        "_read",
        "_seen",
        "_seq",
        "_settings",
        "batch",
        "batch_in_flight",
        "breadth",
        "engine",
        "in_flight",
        "limiter",
        "pace",
        "pending",
        "prefill_known",
        "prefill_seconds",
        "shut_times",
        "turnover",
        "unseen",
        "unstarted",
        "window",
    )

    def __init__(self, instance: Instance, settings: Settings) -> None:
        self._settings = settings.gate
        self.limiter = AdaptiveLimit(instance.max_concurrent, instance.adaptive)
        self.batch = BatchLimit(settings.gate.batch_floor)
        self.engine = EngineView(settings.metrics.stale_after, settings.gate.waiting_below)
        self.pace = Pace()
        self.breadth = Breadth(self.pace)
        self.turnover = Turnover()
        most = settings.gate.waiting_below
        self._may_wait = (max(min(most, 1.0), most - 1.0), most)
        """Requests that may wait in the engine; the second for guests."""
        self.window = instance.window_tokens
        self.in_flight = self.batch_in_flight = 0
        self.unstarted = 0
        """Prompt tokens sent and not begun."""
        self.pending = 0
        """Requests sent and not begun; a whole answer is taken to have begun once its reservation lapsed."""
        self.unseen = 0
        """Requests whose beginning was not seen: the same, but whole answers are among them until they end."""
        self.prefill_seconds = _FIRST_GUESS
        """Seconds of prefill per prompt token, learned from streams that were alone in the window."""
        self.prefill_known = False
        self.shut_times = ShutTimes()
        self._seen: dict[ServiceClass, float] = {}
        self._read = 0
        """Prompt tokens read so far."""
        self._first: tuple[Place, float] | None = None
        """A request that came alone, and when its first token did."""
        self._lapsing: list[tuple[float, int, Place]] = []
        self._due = inf
        """When the first reservation lapses, or the look for the machine's own pace is over, at the earliest."""
        self._seq = 0

    @property
    def limit(self) -> int:
        """Requests that may be in flight."""
        return self.limiter.limit

    def recall(self, prefill_seconds: float | None, token_seconds: float | None, limit: float | None) -> None:
        """Take over what was found out before a restart; None: nothing was."""
        if prefill_seconds is not None:
            self.prefill_seconds, self.prefill_known = min(max(prefill_seconds, _FASTEST), _SLOWEST), True
        if token_seconds is not None:
            self.pace.recall(token_seconds)
            self.limiter.looked()
        if limit is not None:
            self.limiter.recall(limit)

    def reshape(self, instance: Instance) -> None:
        """Take new bounds; what was learned stays."""
        self.limiter.reshape(instance.max_concurrent, instance.adaptive)
        self.window = instance.window_tokens

    # ------------------------------------------------------------------ may it enter?

    def shut(
        self, tokens: int, now: float, service_class: ServiceClass = ServiceClass.NORMAL, guest: bool = False
    ) -> str:
        """Why a request with so many uncached prompt tokens may not enter now; "" when it may."""
        in_flight, window = self.in_flight, self.window
        if now >= self._due:
            self._lapse(now)
        if in_flight >= (self.limiter.ample if guest else self.limiter.limit):
            return "in_flight"
        if window is not None:
            unread = self.unstarted + tokens
            if unread > window and self.unstarted and not self.turnover.takes(in_flight, unread, now):
                return "window"
        if in_flight:
            may_wait = self._may_wait[guest]
            if self.engine.polled and self.engine.fresh(now) is not None:
                if reason := self._overfull(tokens, service_class, may_wait, now):
                    return reason
            elif window is not None and self.pending >= may_wait and self._behind(in_flight, may_wait, now):
                return "pending"
        return self._no_batch(now) if service_class is _BATCH else ""

    def _behind(self, in_flight: int, may_wait: float, now: float) -> bool:
        """More would wait at an engine without metrics than may: so many, or a part of what it was seen to run, or what
        it finishes in a moment."""
        may_wait = max(may_wait, self.breadth.most * _PART_WAITING)
        over = self.pending >= may_wait and in_flight >= self.breadth.most + may_wait
        return over and not self.turnover.takes(in_flight, 0, now)

    def _overfull(self, tokens: int, service_class: ServiceClass, may_wait: float, now: float) -> str:
        """Why the engine's own metrics, which are known, forbid it."""
        if self.pace.decoding > self._slowest(service_class):
            return "pace"
        waiting = self.engine.waiting(now, self.breadth.most)
        if waiting is not None and waiting >= may_wait:
            return "engine_queue"
        kv = self.engine.kv(self.unstarted + tokens, now)
        return "kv" if kv is not None and kv >= self._settings.kv_below else ""

    def _slowest(self, service_class: ServiceClass) -> float:
        """Seconds per token that a class bears."""
        wanted = self._settings.tpot.get(service_class, self._settings.tpot_most)
        return self.pace.target(wanted, self._settings.tpot_most)

    def _no_batch(self, now: float) -> str:
        if self.batch_in_flight >= self.batch.limit(self.limiter.limit):
            return "batch_limit"
        return "batch_engine_queue" if self.batch_in_flight and self.engine.waiting(now, self.breadth.most) else ""

    def opens_at(self, now: float) -> float | None:
        """When it may open without any event: a reservation lapses, the engine's report goes stale, or the time to
        see the machine calm is over."""
        self._lapse(now)
        soonest = self._due
        if self.engine.polled and self.engine.fresh(now) is not None:
            soonest = min(soonest, self.engine.stale_at)
        return None if soonest == inf else soonest

    # ------------------------------------------------------------------ in, along, out

    def enter(self, tokens: int, service_class: ServiceClass, streamed: bool, now: float, whole: bool = True) -> Place:
        """Take a place; the caller has asked `shut` before. `whole`: nothing of the prompt is known to be cached."""
        limiter = self.limiter
        if now >= self._due:
            self._lapse(now)
        lapses = None if streamed or self.window is None else now + tokens * self.prefill_seconds
        lone = self.in_flight == 0
        taken = Place(tokens, service_class, now, lapses, whole and self.unstarted == 0, lone)
        taken.read_before = self._read
        if lone:
            self.turnover.resumed(now)
            if streamed:
                limiter.look(now)
                self._due = min(self._due, limiter.looks_until)
        taken.window = self.turnover.window
        self.in_flight += 1
        self.unstarted += tokens
        self.pending += 1
        self.unseen += 1
        if service_class is _BATCH:
            self.batch_in_flight += 1
        self._seen[service_class] = now
        self.engine.sent += 1
        if lapses is not None:
            self._seq += 1
            heappush(self._lapsing, (lapses, self._seq, taken))
            if lapses < self._due:
                self._due = lapses
            if len(self._lapsing) > 2 * self.in_flight + 16:
                self._lapsing = [entry for entry in self._lapsing if entry[2].unstarted]
                heapify(self._lapsing)
        return taken

    def started(self, place: Place, now: float) -> None:
        """The first content is here: the prompt has been read."""
        if now >= self._due:
            self._lapse(now)
        if self._first is not None:
            self._learn_prefill(self._first[0], self._first[1], now)
        if place.unstarted:
            self._start(place)
        if place.unseen:
            if place.lapses is None:
                self.breadth.begun(place.entered, now)
            self._see(place)
        if place.alone and place.lapses is None and place.tokens >= _LONG_ENOUGH:
            self._first = (place, now)
        place.moved = now
        if now - self.pace.since >= WINDOW:
            self._tick(now)

    def beaten(self, place: Place, now: float) -> None:
        """Another instance began first with the same request. While nothing is known of how fast this one reads, it is
        taken to need at least the time that it has had: else it would be guessed to be fast, and asked first, for ever.
        """
        if self.prefill_known or place.lapses is not None or not place.alone or place.tokens < _LONG_ENOUGH:
            return
        least = (now - place.entered) / (self._read + place.tokens - place.read_before)
        self.prefill_seconds = min(max(self.prefill_seconds, least), _SLOWEST)

    def progressed(self, place: Place, tokens: int, now: float) -> None:
        """The request made `tokens` tokens since it last did."""
        if now >= self._due:
            self._lapse(now)
        if self._first is not None:
            self._learn_prefill(self._first[0], self._first[1], now)
        self._count(place, tokens, now)
        if now - self.pace.since >= WINDOW or (self.limiter.looking and self.pace.shows(now)):
            self._tick(now)

    def reported(self, report: EngineReport | None, now: float) -> None:
        """The engine's metrics were polled; None: they said nothing."""
        self._lapse(now)
        self.engine.take(report, self.in_flight, self.unseen, now)
        if report is not None and report.running is not None:
            self.breadth.shown(int(report.running), now)

    def refused(self, now: float) -> None:
        """The engine said that it has too much, or did not answer in time."""
        self.limiter.refused(self.in_flight, now)

    def leave(self, place: Place, now: float, usage: Usage | None = None, well: bool = False) -> None:
        """Give the place back, on whatever way the attempt ended, `well` or not; a second call changes nothing.

        `usage` is that of a complete answer that was made here from its first token to its last; None for any other.
        """
        if not place.present:
            return
        place.present = False
        if now >= self._due:
            self._lapse(now)
        seen_streaming = not place.unseen and place.lapses is None
        if seen_streaming and usage is not None and not usage.reasoning and now > place.moved:
            self._count_rest(place, usage.completion, now)
        self.in_flight -= 1
        self.turnover.left(place, well, self.in_flight, now)
        if place.service_class is _BATCH:
            self.batch_in_flight -= 1
        if place.unstarted:
            self._start(place)
        if seen_streaming:
            self.breadth.ended(place.entered, now)
        elif place.unseen:
            self._see(place)
        self.engine.left += 1
        if now - self.pace.since >= WINDOW:
            self._tick(now)

    # ------------------------------------------------------------------ inside

    def _count(self, place: Place, tokens: int, now: float) -> None:
        self.pace.progressed(now - place.moved, tokens, place.service_class is not _BATCH)
        place.moved = now
        place.told += tokens

    def _count_rest(self, place: Place, made: int, now: float) -> None:
        """What a stream made after its last report, and all of an answer too short for one, its first token apart.

        More than fits between two reports was made unseen, before the first token or several at a time: no pace.
        """
        rest = made - (place.told or 1)
        if 0 < rest <= _REPORTED:
            self._count(place, rest, now)

    def _learn_prefill(self, place: Place, began: float, now: float) -> None:
        """Take the least that first tokens show, that of `place` having come at `began`, forgetting slowly.

        What was read since a request came is its own prompt and those that joined its step; their first tokens come
        together, so it is reckoned up a moment later. Prompts known in part are left out: engines keep answers, too,
        and know more of the next turn than we do. Where others decode, a first token also waits for the step under
        way and shares its own, which is not prefill.
        """
        if now - began < _TOGETHER:
            return
        took = began - place.entered
        self._first = None
        if not place.lone and took < _STEPS_SHARED * (self.pace.tpot or self.pace.base):
            return
        seen = min(max(took / (self._read - place.read_before), _FASTEST), _SLOWEST)
        known = self.prefill_seconds
        self.prefill_seconds = (
            known + (_FALL if seen < known else _RISE) * (seen - known) if self.prefill_known else seen
        )
        self.prefill_known = True

    def _start(self, place: Place) -> None:
        """Its prompt has been read, or is taken to be."""
        place.unstarted = False
        self.unstarted -= place.tokens
        self.pending -= 1
        self._read += place.tokens
        self.pace.prompt_tokens += place.tokens

    def _see(self, place: Place) -> None:
        """Its beginning was seen, or will not be any more."""
        place.unseen = False
        self.unseen -= 1
        self.engine.begun += 1

    def _lapse(self, now: float) -> None:
        """What ends by itself in time ends. First of all whenever anything happens here, so that it makes no difference
        whether somebody asked meanwhile, which does the same."""
        if self.limiter.looks_until:
            self.limiter.pass_time(now)
        lapsing = self._lapsing
        while lapsing and (lapsing[0][0] <= now or not lapsing[0][2].unstarted):
            place = heappop(lapsing)[2]
            if place.unstarted:
                self._start(place)
        self._due = lapsing[0][0] if lapsing else inf
        if self.limiter.looking:
            self._due = min(self._due, self.limiter.looks_until)

    def _tick(self, now: float) -> None:
        """Twice a second: let the limits follow what the last window showed."""
        settings, pace = self._settings, self.pace
        pace.close(self.in_flight - self.pending, self.limiter.most, self.prefill_seconds, now)
        if pace.base:
            self.limiter.looked()
        wanted, borne, guarded = self._aim(now)
        target = pace.target(wanted, settings.tpot_most)
        strained = self.engine.strained(settings.kv_below, now)
        self.limiter.tick(self.in_flight, pace.crowded(target), pace.crowding(target), strained, pace.easy(target))
        protected = pace.tpot_protected if guarded else pace.tpot
        target = pace.target(borne, settings.tpot_most)
        still = guarded and protected is None and self.in_flight > self.batch_in_flight
        self.batch.tick(self.batch_in_flight, self.limiter.limit, protected, target, still)

    def _aim(self, now: float) -> tuple[float, float, bool]:
        """The TPOT to aim at, the one that the most urgent here bear, and whether batch has to heed somebody."""
        settings, seen = self._settings, {of for of, at in self._seen.items() if now - at < _REMEMBERED}
        if seen <= {_BATCH}:
            return settings.tpot[_BATCH], settings.tpot[_BATCH], False
        return settings.pace, settings.tpot[ServiceClass.INTERACTIVE], True
