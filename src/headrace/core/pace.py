"""How fast an instance works, as its streams tell: time per output token, and what of it is prefill.

All of it is seen from outside, in windows of half a second, smoothed over a few:

* TPOT is the time between progress reports of streams divided by their tokens, apart for the streams to be protected.
* Base TPOT is the least seen with few streams and little prefill, rising slowly, so that a changed model or machine is
  learned anew. Under a flood it stays unknown: a crowded machine does not show how fast it could be.
* The prefill share is the part of the time that the machine spent on reading prompts. Where it dominates, fewer
  requests in flight would not make tokens faster, so slow tokens say nothing about the limit then.
* The cost of one output token is the machine time that was not prefill, divided by the tokens made in it. With the cost
  of a prompt token it gives the true price ratio w_q / w_p of this model on this machine.

Response times are never used: they grow with the length of the answer and say nothing about load.
"""

from __future__ import annotations

WINDOW = 0.5
"""Seconds of one window."""
_GLANCE, _TELLING = 0.2, 16.0
"""Seconds, and tokens in them, from which next to nothing but a lone stream shows how fast the machine is."""
_EASY = 0.25
"""Part of the target up to which tokens are so fast that there may be twice as many streams."""
_BASE_RISE = 0.0002
_SMOOTH = 0.5
_SMOOTH_SLOW = 0.1
_SMOOTH_SHARE = 0.2
_MEMORY = 0.98
"""What is left of the calibrated cost's sums after each window: about half a minute of memory."""
_FELT = 0.2
"""Part of the target that the streams' own share of a token's time must reach to be the reason that it is slow."""
_FULL = 0.25
"""Prices are learned while so much of it is in use: a lone stream's token costs a whole step."""
_FEW = 2
_LITTLE = 0.3
_QUICKEST, _SLOWEST = 1e-4, 2.0
"""Seconds per token between which what an earlier process had found is believed."""
_ENOUGH = 2000.0
"""Tokens from which the decode cost is believed."""


class _Mean:
    """Seconds per token over windows."""

    __slots__ = ("_closed", "seconds", "slow", "tokens", "value")

    def __init__(self) -> None:
        self.seconds = self.tokens = 0.0
        self.value: float | None = None
        """Of the last windows; None: no token in the last one."""
        self._closed = 0
        self.slow = 0.0
        """Of the last five seconds."""

    def close(self) -> None:
        """End a window; one without tokens leaves nothing known."""
        if not self.tokens:
            self.value = None
            return
        seen = self.seconds / self.tokens
        self.value = seen if self.value is None else self.value + _SMOOTH * (seen - self.value)
        self._closed += 1
        self.slow += max(_SMOOTH_SLOW, 1.0 / self._closed) * (seen - self.slow)
        self.seconds = self.tokens = 0.0


class Pace:
    """The windows of one instance."""

    __slots__ = (
        "_all",
        "_busy",
        "_made",
        "_protected",
        "_share",
        "base",
        "decode_seconds",
        "prefill_share",
        "prompt_tokens",
        "since",
        "tpot",
    )

    def __init__(self) -> None:
        self.base = 0.0
        """Seconds per output token with little load; 0 while unknown."""
        self.prefill_share = 0.5
        """Part of the machine's time that went to reading prompts, over the last seconds."""
        self._share = 1.0
        """The same of the last windows; a machine begins by reading."""
        self.since = 0.0
        """When the present window began."""
        self._all, self._protected = _Mean(), _Mean()
        self.tpot: float | None = None
        """Seconds per output token of late; None: no stream moved."""
        self.prompt_tokens = 0.0
        """Uncached prompt tokens that were read in this window."""
        self._busy = self._made = 0.0
        """Machine seconds of decoding, and tokens made in them, both decaying."""
        self.decode_seconds = 0.0
        """Calibrated machine time of one output token; 0 while unknown."""

    def recall(self, base: float) -> None:
        """Begin with what an earlier process found as `base`."""
        self.base = min(max(base, _QUICKEST), _SLOWEST)

    @property
    def tpot_protected(self) -> float | None:
        """The same of the streams that are to be protected."""
        return self._protected.value

    @property
    def decoding(self) -> float:
        """Seconds per token of late without the time that went to reading prompts; 0: nothing moved.

        Reading is bounded by the un-started window. An engine that reads slowly has slow tokens behind every prompt: to
        send it nothing for that would leave it idle as soon as it has read what it was sent.
        """
        return self._all.slow * (1.0 - min(1.0, self.prefill_share)) if self._all.value is not None else 0.0

    def crowded(self, target: float) -> float:
        """Seconds per token of late as a multiple of `target`, where it is the streams that make each other slow.

        0 where what they do to each other is small beside the target and the rest is prefill, or nothing moved.
        """
        slow = self._all.slow if self._all.value is not None else 0.0
        return _felt(slow, self.prefill_share, target)

    def crowding(self, target: float) -> float:
        """The same at this moment: less steady, but first to show."""
        return _felt(self._all.value or 0.0, self._share, target)

    def shows(self, now: float) -> bool:
        """Enough was seen of a machine with next to nothing to do; the window need not go on."""
        return now - self.since >= _GLANCE and self._all.tokens >= _TELLING

    def easy(self, target: float) -> bool:
        """Twice as many streams keep within `target`, even if half of those that are here do not show yet: n times as
        many make tokens n times as slow at most."""
        return self.tpot is not None and self.tpot <= _EASY * target

    def progressed(self, seconds: float, tokens: int, protected: bool) -> None:
        """A stream made `tokens` tokens in `seconds`."""
        self._all.seconds += seconds
        self._all.tokens += tokens
        if protected:
            self._protected.seconds += seconds
            self._protected.tokens += tokens

    def close(self, decoding: int, most: int, prefill_seconds: float, now: float) -> None:
        """The window is over (`now - since` says when) and the next one begins.

        Args:
            decoding: streams past their first token.
            most: requests that may ever be in flight.
            prefill_seconds: machine time of one prompt token.
            now: monotonic seconds.
        """
        length = now - self.since
        made, spent = self._all.tokens, self.prompt_tokens * prefill_seconds
        share = spent / length
        if made:
            # A long prompt is counted where it ends: only sums over several windows mean anything.
            self._share += _SMOOTH * (share - self._share)
            self.prefill_share += _SMOOTH_SHARE * (share - self.prefill_share)
        if made and length < 4 * WINDOW and decoding >= _FULL * most:
            self._busy = _MEMORY * self._busy + length - spent
            self._made = _MEMORY * self._made + made
            self.decode_seconds = max(0.0, self._busy) / self._made if self._made >= _ENOUGH else 0.0
        self._all.close()
        self._protected.close()
        self.tpot = self._all.value
        if self.tpot is not None and decoding <= _FEW and share < _LITTLE:
            self.base = self.tpot if self.base == 0.0 else min(self.base * (1.0 + _BASE_RISE), self.tpot)
        self.since = now
        self.prompt_tokens = 0.0

    def target(self, wanted: float, most: float) -> float:
        """The TPOT to hold: `wanted`, or four times the unloaded one up to `most` where the machine is slower.

        A machine whose unloaded pace is already slow is allowed twice that pace.
        """
        return max(wanted, min(4.0 * self.base, most), 2.0 * self.base)


def _felt(seconds: float, prefill_share: float, target: float) -> float:
    return seconds / target if seconds * (1.0 - prefill_share) >= _FELT * target else 0.0
