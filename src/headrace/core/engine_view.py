"""What an engine says of itself, corrected by what happened since it said so.

A poll is old the moment it is read: a burst sent after it is not in it. So the queue at the engine is taken as the
polled one, plus what was sent since, less what has begun since. Two things are not what they seem: what begins soon
after a poll was often in the batch already, being read, and takes nothing out of the queue; and what was sent just
before it may be counted nowhere yet (llama.cpp counts a request once the step under way is over). Both are found by
conservation: of what we have at the engine, each has begun, is being read, waits, or has not been seen.

There is a second account, by places: what is there beyond what the engine can run waits. What it can run is what it
ran at the poll, if its queue was too long then; else that at least, and what it has shown otherwise
(`breadth.Breadth`). Both accounts may be too long, hardly ever too short, so the shorter one holds: a large engine
takes a burst of short prompts at once, where the first account alone would see a queue.

A report that is too old, absent or garbled is unknown: neither zero nor full. Then only the gates that need no metrics
hold.
"""

from __future__ import annotations

from headrace.model import EngineReport


class EngineView:
    """One engine's metrics as known at a moment.

    Args:
        stale_after: seconds after which a report says nothing any more.
        waiting_below: a longer queue at the engine than we mean it to have.
    """

    __slots__ = (
        "_reading",
        "_stale_after",
        "_stuck_polls",
        "_waiting_below",
        "begun",
        "known_at",
        "left",
        "polled",
        "report",
        "sent",
        "stale_at",
    )

    def __init__(self, stale_after: float, waiting_below: float) -> None:
        self._stale_after = stale_after
        self._waiting_below = waiting_below
        self.sent = self.begun = self.left = 0
        """Requests that went there since the last report (or were not in it); that were begun, or left, since."""
        self._reading = 0
        """Requests that were in the batch at the poll and had not begun to be answered."""
        self._stuck_polls = 0
        self.report: EngineReport | None = None
        self.known_at: float | None = None
        """When the metrics last said something."""
        self.stale_at = 0.0
        """When the last report says nothing any more; what it shuts opens then."""
        self.polled = False

    def take(self, report: EngineReport | None, in_flight: int, pending: int, now: float) -> None:
        """A poll ended; `report` None: it said nothing. `in_flight` requests are there, `pending` of them not begun."""
        self.report = report
        self.polled = True
        if report is not None:
            self.known_at = now
            self.stale_at = now + self._stale_after
            stuck = not self.begun and (report.waiting or 0.0) >= self._waiting_below
            self._stuck_polls = self._stuck_polls + 1 if stuck else 0
            waiting = int(report.waiting or 0)
            seen = waiting + (in_flight if report.running is None else int(report.running))
            self.sent, self.begun, self.left = min(pending, max(0, in_flight - seen)), 0, 0
            self._reading = max(0, pending - waiting - self.sent)

    def fresh(self, now: float) -> EngineReport | None:
        """The last report, if it still says anything."""
        return self.report if self.report is not None and now < self.stale_at else None

    def stale(self, now: float) -> bool:
        """It is asked for metrics and nothing usable is known."""
        return self.polled and self.fresh(now) is None

    def waiting(self, now: float, breadth: int = 0) -> float | None:
        """Requests in the engine's own queue; None: unknown. `breadth`: it was seen to run so many at a time."""
        report = self.fresh(now)
        if report is None or report.waiting is None:
            return None
        unbegun = max(0.0, report.waiting + self.sent - max(0, self.begun - self._reading))
        if not unbegun or report.running is None:
            return unbegun
        places = report.running if report.waiting >= self._waiting_below else max(report.running, float(breadth))
        return max(0.0, min(unbegun, report.running + report.waiting + self.sent - self.left - places))

    def kv(self, pending_tokens: int, now: float) -> float | None:
        """Share of the KV cache in use once `pending_tokens` more are read; None: unknown."""
        report = self.fresh(now)
        if report is None or report.kv is None:
            return None
        return report.kv + (pending_tokens / report.kv_tokens if report.kv_tokens else 0.0)

    def strained(self, kv_below: float, now: float) -> bool:
        """Too long a queue that did not move between polls, twice; a full cache; requests thrown out of the batch.

        A queue that moves is only prompts being read, which the un-started window bounds already.
        """
        report = self.fresh(now)
        if report is None:
            return False
        return self._stuck_polls >= 2 or (report.kv or 0.0) > kv_below or (report.preemptions or 0.0) > 0.0
