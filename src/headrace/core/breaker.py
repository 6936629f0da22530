"""A circuit breaker per instance: stop asking what keeps failing, and find out cheaply when it is back.

The rule is Nygard's ("Release It!", 2007, stability patterns): CLOSED counts failures in a row and opens at
`threshold`; OPEN lets nothing through for a while; HALF_OPEN lets one probe through, whose result decides. Two
refinements make it safe under concurrency:

**The probe is a lease.** HALF_OPEN lets exactly one attempt through; everybody else still finds the breaker shut. The
lease belongs to the attempt that took it: only its own result closes or re-opens. A probe that ends without a verdict
(its caller left, the engine said "bad request") gives the lease back, and the next attempt may probe at once.

**Results belong to the period they began in.** Attempts sent while the breaker was closed may end long after it
opened, even after it closed again. Each attempt carries the `Permit` it went through with; when the breaker opens or
is reset, the old permits are void. So late successes do not close an open breaker, late failures neither lengthen the
wait nor, coming in a bunch after a successful probe, open it anew.

A failed probe doubles the wait, up to `recovery * max_backoff`; a successful one resets it. Where the cause was seen to
be over (a health check failed since, and the next one did not), the probe may go at once: a process that was started
anew is used again within seconds. Who opened it by hand meant the whole time.

`now` is monotonic seconds. All operations are O(1); state is a handful of numbers.
"""

from __future__ import annotations

from headrace.model import BreakerState


class Permit:
    """What an attempt went through the breaker with; hand it back with the attempt's result.

    True as a truth value exactly when the attempt is the probe of a half-open breaker.
    """

    __slots__ = ("probe",)

    def __init__(self, probe: bool) -> None:
        self.probe = probe

    def __bool__(self) -> bool:
        return self.probe


_VOID = Permit(probe=False)


class Breaker:
    """Opens after `threshold` failures in a row, for `recovery` seconds at first, `recovery * max_backoff` at most.

    Raises ValueError for a threshold below 1, a recovery that is not positive, or a max_backoff below 1.
    """

    __slots__ = (
        "_by_hand",
        "_failures",
        "_longest",
        "_noted",
        "_pass",
        "_probe",
        "_recovery",
        "_threshold",
        "_wait",
        "changes",
        "opened",
        "opened_at",
        "until",
    )

    def __init__(self, threshold: int = 5, recovery: float = 60.0, max_backoff: float = 64.0) -> None:
        if threshold < 1 or not recovery > 0 or not max_backoff >= 1:
            raise ValueError("a breaker needs threshold >= 1, recovery > 0 and max_backoff >= 1")
        self._threshold = threshold
        self._recovery = recovery
        self._longest = recovery * max_backoff
        self._wait = recovery
        self._failures = 0
        self.opened = self._by_hand = False
        """It is not closed: a probe has to succeed first."""
        self.until = 0.0
        """When a probe may go, where it is open."""
        self._pass = Permit(probe=False)
        self._probe: Permit | None = None
        self._noted = BreakerState.CLOSED
        self.changes = dict.fromkeys(BreakerState, 0)
        """How often it went into each state; half-open counts when the probe goes."""
        self.opened_at = 0.0
        """When it was last opened."""

    def allows(self, now: float) -> bool:
        """Whether an attempt may be sent now; changes nothing."""
        return not self.opened or (self._probe is None and now >= self.until)

    def acquire(self, now: float) -> Permit:
        """The permit of an attempt that is sent now; a true one is the probe.

        Ask `allows` first: an attempt sent in spite of a shut breaker gets a permit whose result changes nothing.
        """
        if not self.opened:
            return self._pass
        if self._probe is not None or now < self.until:
            return _VOID
        self._probe = Permit(probe=True)
        self._note(BreakerState.HALF_OPEN)
        return self._probe

    def success(self, permit: Permit) -> None:
        """The attempt ended well."""
        if permit is self._pass:
            self._failures = 0
        elif permit is self._probe:
            self.reset()

    def failure(self, now: float, permit: Permit) -> None:
        """The attempt's instance failed."""
        if permit is self._pass:
            self._failures += 1
            if self._failures >= self._threshold:
                self._open(now)
        elif permit is self._probe:
            self._wait = min(self._wait * 2, self._longest)
            self._open(now)

    def neutral(self, permit: Permit) -> None:
        """The attempt ended without a verdict on its instance."""
        if permit is self._probe:
            self._probe = None

    def reset(self) -> None:
        """Close it and forget all failures; attempts that are under way no longer count."""
        self._note(BreakerState.CLOSED)
        self.opened = self._by_hand = False
        self._wait = self._recovery
        self._failures = 0
        self._pass = Permit(probe=False)
        self._probe = None

    def trip(self, now: float) -> None:
        """Open it for the present wait, whatever it was."""
        self._open(now)
        self._by_hand = True

    def relent(self, now: float) -> bool:
        """Let a probe go now, for what opened it seems to be over; False: it does not wait, or was opened by hand."""
        if not self.opened or self._by_hand or now >= self.until:
            return False
        self.until = now
        return True

    def state(self, now: float) -> BreakerState:
        """Half-open from the moment a probe may go until its result is known."""
        if not self.opened:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self.until else BreakerState.HALF_OPEN

    def opens_in(self, now: float) -> float:
        """Seconds until a probe may go; 0.0 when closed or half-open."""
        return max(self.until - now, 0.0) if self.opened else 0.0

    @property
    def wait(self) -> float:
        """Seconds that it stays open when it opens; a failed probe doubles them."""
        return self._wait

    def recall(self, opens_in: float, wait: float, now: float) -> None:
        """Be as open as it was before a restart: `opens_in` seconds from now a probe may go.

        `wait` is what `wait` was then; both are brought within the present bounds.
        """
        self._wait = min(max(wait, self._recovery), self._longest)
        self._open(now)
        self.until = now + min(max(opens_in, 0.0), self._longest)

    def _open(self, now: float) -> None:
        self._note(BreakerState.OPEN)
        self.opened, self._by_hand = True, False
        self.opened_at = now
        self.until = now + self._wait
        self._failures = 0
        self._pass = Permit(probe=False)
        self._probe = None

    def _note(self, state: BreakerState) -> None:
        if state is not self._noted:
            self._noted = state
            self.changes[state] += 1
