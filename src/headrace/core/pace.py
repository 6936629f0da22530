"""How fast an instance works, as its streams tell: time per output token, prefill seconds per prompt token, decode
cost.

All of it is seen from outside, in windows of half a second:

* TPOT is the time between progress reports of streams divided by their tokens, apart for interactive streams and
  for the rest.
* Base TPOT is the least ever seen in a window, rising slowly, so that a changed model or machine is learned anew.
* The cost of one output token is the share of a decode step that one stream takes: the step's time, less what
  prefill took of it, divided by the streams that decode. With the cost of a prompt token it gives the true price
  ratio w_q / w_p of this model on this machine.

Response times are never used: they grow with the length of the answer and say nothing about load.
"""

from __future__ import annotations

WINDOW = 0.5
"""Seconds of one window."""
_BASE_RISE = 0.002
_SLOW = 0.02
"""Weight of one window in the calibrated decode cost: about half a minute of memory."""


class Pace:
    """The windows of one instance."""

    __slots__ = (
        "_interactive_seconds",
        "_interactive_tokens",
        "_prompt_tokens",
        "_seconds",
        "_since",
        "_tokens",
        "base",
        "decode_seconds",
        "tpot",
        "tpot_interactive",
    )

    def __init__(self) -> None:
        self.base = 0.0
        """Seconds per output token with little load; 0 while unknown."""
        self.tpot: float | None = None
        """Seconds per output token in the last window; None: no stream moved in it."""
        self.tpot_interactive: float | None = None
        """The same of interactive streams only."""
        self.decode_seconds = 0.0
        """Calibrated machine time of one output token; 0 while unknown."""
        self._since = 0.0
        self._seconds = self._tokens = 0.0
        self._interactive_seconds = self._interactive_tokens = 0.0
        self._prompt_tokens = 0.0

    def progressed(self, seconds: float, tokens: int, interactive: bool) -> None:
        """A stream made `tokens` tokens in `seconds`."""
        self._seconds += seconds
        self._tokens += tokens
        if interactive:
            self._interactive_seconds += seconds
            self._interactive_tokens += tokens

    def prefilled(self, tokens: int) -> None:
        """A prompt of so many uncached tokens has been read."""
        self._prompt_tokens += tokens

    def tick(self, decoding: int, prefill_seconds: float, now: float) -> bool:
        """Close the window if its time is over; True when it was closed.

        Args:
            decoding: streams that are past their first token.
            prefill_seconds: machine time of one prompt token.
            now: monotonic seconds.
        """
        length = now - self._since
        if length < WINDOW:
            return False
        self.tpot = self._seconds / self._tokens if self._tokens else None
        self.tpot_interactive = (
            self._interactive_seconds / self._interactive_tokens if self._interactive_tokens else None
        )
        if self.tpot is not None:
            self.base = self.tpot if self.base == 0.0 else min(self.base * (1.0 + _BASE_RISE), self.tpot)
            if decoding > 0 and length < 4 * WINDOW:
                prefilling = min(0.9, self._prompt_tokens * prefill_seconds / length)
                seen = self.tpot * (1.0 - prefilling) / decoding
                self.decode_seconds += (_SLOW if self.decode_seconds else 1.0) * (seen - self.decode_seconds)
        self._since = now
        self._seconds = self._tokens = 0.0
        self._interactive_seconds = self._interactive_tokens = 0.0
        self._prompt_tokens = 0.0
        return True

    def target(self, wanted: float, most: float) -> float:
        """The TPOT to hold: `wanted`, or four times the unloaded one up to `most` where the machine is slower than
        that.

        A machine whose unloaded pace is already slow is allowed twice that pace.
        """
        return max(wanted, min(4.0 * self.base, most), 2.0 * self.base)
