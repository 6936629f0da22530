"""What an engine finishes in a moment: how many may be at it so that whoever comes next stands behind a moment's work.

By Little's law an engine that finishes R requests a second is through with n of them after n / R seconds. So whatever
else is known of it, as many as it finishes in `SLACK` may be there, and as many unread prompt tokens as it finishes in
that time: an engine that answers in milliseconds (embeddings, a classifier, a cache) is given what it can take, and a
wait that nobody feels is all that can build up there. Where answers take longer than `SLACK` this allows less than what
is there already, and so nothing.

It is counted in windows of time in which it had something to do; only successes count, as quick errors show nothing.
A window says nothing good if something was there from its beginning to its end: an engine that does one thing quickly
and another one slowly (a cache before a model) is not quick. Nor is one at which nothing has ended for a window. When
answers become slower no more come in than leave, so what is there then is at most what was allowed before.
"""

from __future__ import annotations

from headrace.core.place import Place

SLACK = 0.05
"""Seconds of work that may be at an engine unseen."""
_WINDOW = 2 * SLACK
_REMEMBERED = 10.0
"""Seconds without any request after which what was seen of an engine is forgotten."""


class Turnover:
    """What one engine finishes."""

    __slots__ = ("_ended", "_idle_since", "_read", "_since", "_stayed", "requests", "tokens", "window")

    def __init__(self) -> None:
        self.requests = 0.0
        """That it finished in `SLACK` seconds of the last window."""
        self.tokens = 0.0
        """Prompt tokens of these."""
        self.window = 0
        """The number of the present window, which goes on while something is there."""
        self._since = self._idle_since = 0.0
        """When the present window began, later by the time without requests in it; since when there is none."""
        self._ended = self._read = 0
        """Requests that ended well in the present window, and their prompt tokens."""
        self._stayed = 0
        """Requests that have been there since it began."""

    def takes(self, there: int, unread: int, now: float) -> bool:
        """It is through with one more than are `there`, and so many unread prompt tokens, in a moment."""
        return there < self.requests and unread <= self.tokens and now - self._since < 2.0 * _WINDOW

    def resumed(self, now: float) -> None:
        """A request comes where there was none."""
        idle = now - self._idle_since
        self._since += idle
        if idle > _REMEMBERED:
            self.requests = self.tokens = 0.0

    def left(self, place: Place, well: bool, rest: int, now: float) -> None:
        """A request ended, `well` or not; `rest` are still there."""
        if well:
            self._ended += 1
            self._read += place.tokens
        if place.window != self.window:
            self._stayed -= 1
        if now - self._since >= _WINDOW:
            part = 0.0 if self._stayed else SLACK / (now - self._since)
            self.requests, self.tokens = self._ended * part, self._read * part
            self._ended = self._read = 0
            self._stayed = rest
            self._since = now
            self.window += 1
        if not rest:
            self._idle_since = now
