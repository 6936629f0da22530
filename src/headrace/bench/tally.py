"""What one user experienced: counted while it happens, bounded, and summed up at the end.

Service counts inside the window of measuring only: a prompt when its first content comes, an answer's tokens as they
come, one for each chunk, set right by the reported usage at the end; what a broken answer had brought is taken back.
Waits are those of all requests that were due inside the window, whenever they ended, except the refused and the broken
ones. A request that never got its first content within the run is *censored*: it enters the waits as "at least so
long", since leaving it out would flatter whoever kept it waiting.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

from headrace.bench.endpoint import Answered
from headrace.bench.fairness import OUTPUT_WEIGHT
from headrace.bench.questions import Question

BINS = 120
"""Steps of the curve of service over time."""
UNFINISHED = "unfinished"
"""Requests that were still under way when the run ended: neither served nor failed."""
MOST_RESULTS = 32
"""Most different results that are told apart; the rest is `other`."""


@dataclass(slots=True)
class Exchange:
    """One request on its way. Times are seconds after the start."""

    due: float
    question: Question
    first: float | None = None
    last: float = 0.0
    pieces: int = 0
    prompt_credit: int = 0
    """Prompt tokens counted as service so far..."""
    output_credit: int = 0
    """...and answer tokens: what is taken back when the answer breaks."""


@dataclass(slots=True)
class Samples:
    """Durations in seconds, one for each request it is known of."""

    first: array[float] = field(default_factory=lambda: array("d"))
    """From due to the first content, of requests that were served or still under way at the end..."""
    due: array[float] = field(default_factory=lambda: array("d"))
    """...which were due then."""
    censored: array[float] = field(default_factory=lambda: array("d"))
    """How long those had waited that had seen no content when the run ended."""
    unended: array[float] = field(default_factory=lambda: array("d"))
    """How long all those had taken that were under way when the run ended."""
    token: array[float] = field(default_factory=lambda: array("d"))
    """Between two tokens, the mean of one answer."""
    whole: array[float] = field(default_factory=lambda: array("d"))
    """From due to the end."""
    queued: array[float] = field(default_factory=lambda: array("d"))
    """In the gateway's queue, as it said."""


class Tally:
    """One user's counts. `window`: seconds of measuring; it may be shortened by `close`."""

    def __init__(self, name: str, window: float) -> None:
        self.name = name
        self.window = window
        self.samples = Samples()
        self.results: Counter[str] = Counter()
        self.asked = 0
        self.running = 0
        self.held = 0
        """Requests that are due and wait on the user's side."""
        self.served_inside = 0
        """Served requests that ended inside the window."""
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.estimated = False
        """Some answers came without usage: their chunks and words were counted instead."""
        self.wanted_service = 0.0
        """Service of all that was sent: what it took, or what it may take at most where it has not been served."""
        self.curve = array("d", bytes(8 * BINS))
        """Service received in each of the equal steps of the window that was planned."""
        self._step = window / BINS
        self._waiting = 0
        self._waiting_since = 0.0
        self._waited = 0.0

    # ------------------------------------------------------------------ as it happens

    def hold(self, requests: int, now: float) -> None:
        """So many requests are due, but not sent yet."""
        self.held += requests
        self._wait(requests, now)

    def release(self, requests: int, now: float) -> None:
        """So many of those held are about to be sent, or are given up."""
        self.held -= requests
        self._wait(-requests, now)

    def sent(self, question: Question, due: float, now: float) -> Exchange:
        """A request goes out that was due then."""
        self.asked += 1
        self.running += 1
        self.wanted_service += question.prompt_tokens + OUTPUT_WEIGHT * question.output_tokens
        self._wait(1, now)
        return Exchange(due, question)

    def seen(self, exchange: Exchange, pieces: int, now: float) -> None:
        """So many chunks of content came."""
        exchange.last = now
        if exchange.first is None:
            exchange.first = now
            self._wait(-1, now)
            self._serve(exchange, exchange.question.prompt_tokens, 0, now)
        exchange.pieces += pieces
        self._serve(exchange, 0, pieces, now)

    def ended(self, exchange: Exchange, answer: Answered, now: float) -> None:
        """It is over, well or not."""
        self._count(answer.result)
        self.running -= 1
        if exchange.first is None:
            self._wait(-1, now)
        else:
            self._settle(exchange, answer, now)
        if answer.served and exchange.first is not None:
            self._keep(exchange, answer, exchange.first, now)

    def cut(self, exchange: Exchange, now: float) -> None:
        """The run ended before the request did."""
        self._count(UNFINISHED)
        self.running -= 1
        self.samples.unended.append(now - exchange.due)
        if exchange.first is None:
            self._wait(-1, now)
            self.samples.censored.append(now - exchange.due)
        else:
            self.samples.first.append(exchange.first - exchange.due)
            self.samples.due.append(exchange.due)

    def close(self, window: float) -> None:
        """Measuring is over; what ends from now on does not count as service."""
        self._wait(0, window)
        self.window = window

    # ------------------------------------------------------------------ what it comes to

    @property
    def served(self) -> int:
        """Requests with complete answers."""
        return self.results["served"]

    @property
    def service(self) -> float:
        """Weighted tokens received in the window."""
        return sum(self.curve)

    def backlogged(self, now: float, since: float = 0.0) -> float:
        """The part of the time since then, within the window, in which a request waited for its first content."""
        end = min(now, self.window)
        waited = self._waited + (max(0.0, end - self._waiting_since) if self._waiting else 0.0)
        return min(1.0, waited / (end - since)) if end > since else 0.0

    def _wait(self, change: int, now: float) -> None:
        """Add to the number of requests without content, and to the time in which there were any."""
        end = min(now, self.window)
        if self._waiting:
            self._waited += max(0.0, end - self._waiting_since)
        self._waiting += change
        self._waiting_since = end

    def _serve(self, exchange: Exchange, prompt: int, output: int, now: float) -> None:
        if now <= self.window:
            exchange.prompt_credit += prompt
            exchange.output_credit += output
            self._credit(prompt, output, now)

    def _credit(self, prompt: int, output: int, now: float) -> None:
        self.prompt_tokens += prompt
        self.output_tokens += output
        self.curve[min(BINS - 1, int(now / self._step))] += prompt + OUTPUT_WEIGHT * output

    def _settle(self, exchange: Exchange, answer: Answered, now: float) -> None:
        """Put the reported tokens in the place of the counted ones; a broken answer was no service at all."""
        if not answer.served:
            self._credit(-exchange.prompt_credit, -exchange.output_credit, min(now, self.window))
            return
        usage, question = answer.usage, exchange.question
        prompt = (usage.prompt if usage is not None else 0) or question.prompt_tokens
        output = (usage.completion if usage is not None else 0) or exchange.pieces
        self._serve(exchange, prompt - question.prompt_tokens, output - exchange.pieces, now)
        self.wanted_service += (prompt - question.prompt_tokens) + OUTPUT_WEIGHT * (output - question.output_tokens)
        self.estimated = self.estimated or usage is None

    def _keep(self, exchange: Exchange, answer: Answered, first: float, now: float) -> None:
        samples = self.samples
        samples.first.append(first - exchange.due)
        samples.due.append(exchange.due)
        samples.whole.append(now - exchange.due)
        tokens = (answer.usage.completion if answer.usage is not None else 0) or exchange.pieces
        if tokens > 1 and exchange.last > first:
            samples.token.append((exchange.last - first) / (tokens - 1))
        if answer.waited is not None:
            samples.queued.append(answer.waited)
        if now <= self.window:
            self.served_inside += 1

    def _count(self, result: str) -> None:
        known = result in self.results or len(self.results) < MOST_RESULTS
        self.results[result if known else "other"] += 1
