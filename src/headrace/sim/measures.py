"""What a run was like for its users: waits, speed, shares, use of the machines.

Names are `measure[group]` for one group of users and `measure` for all. Times are in seconds, rates per second.
Someone who is still waiting at the end has waited at least so long, and counts with that. Service is counted in
weighted tokens (uncached prompt x 1 + output x 2) and in seconds of engine time.

Jain's index is taken over the service of those who want more than their share, never over waits: equal waits are no
fairness. Service difference is `max |W_f - W_g|` over the stretches in which both users have something waiting (VTC's
measure).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, combinations

from headrace.core.settings import FairnessSettings
from headrace.model import Ending
from headrace.sim.record import Record, UserLedger, Visit
from headrace.yardsticks import jain, max_min_shares, percentile

FLOOR_SECONDS = 60
"""A group's share of the service is looked at over windows of this length."""
_LAST_LIMITS = 4
"""A limit moves all the time: where it ends is its mean over the last 20 s."""
_PRICES = FairnessSettings()
_FAILED = frozenset(Ending) - {Ending.ANSWERED, Ending.CANCELLED}


def measure(record: Record) -> dict[str, float]:
    """Every measure of one run."""
    found: dict[str, float] = {}
    groups = record.groups
    everyone = [visit for visits in groups.values() for visit in visits]
    for name, visits in {"": everyone, **groups}.items():
        found.update({_label(key, name): value for key, value in _felt(visits, record).items()})
    for name in ["", *sorted({ledger.group for ledger in record.users.values()})]:
        found.update({_label(key, name): value for key, value in _rates(record, name).items()})
    found.update(_fairness(record))
    found.update(_machines(record))
    found.update(_outages(record))
    return found


def _label(key: str, group: str) -> str:
    return f"{key}[{group}]" if group else key


def quantile(values: Iterable[float], part: float) -> float:
    """The least value that at least `part` of all values do not exceed; nan of nothing."""
    ordered = sorted(values)
    return percentile(ordered, part) if ordered else float("nan")


def evenness(shares: Sequence[float]) -> float:
    """Jain's index; 1 where there is nobody to compare with, or nothing."""
    index = jain(shares)
    return 1.0 if index is None else index


def first_token(visit: Visit, end: float) -> float:
    """Seconds from the request to its first token; for one that still waits, so far."""
    return (end if visit.first is None else visit.first) - visit.arrived


def queued(visit: Visit, end: float) -> float:
    """Seconds in the gateway's queue; for one that still waits there, so far."""
    return visit.waited if visit.dispatched is not None else (visit.finished or end) - visit.arrived


def per_token(visit: Visit) -> float | None:
    """Seconds per output token after the first, of a finished answer."""
    if visit.finished is None or visit.first is None or visit.output < 2:
        return None
    return (visit.finished - visit.first) / (visit.output - 1)


def weighted(ledger: UserLedger) -> list[float]:
    """A user's service in weighted tokens, by second."""
    return [
        prompt * _PRICES.prompt_price + output * _PRICES.output_price
        for prompt, output in zip(ledger.prompt, ledger.output, strict=True)
    ]


# --------------------------------------------------------------------------------------------- what users feel


def _felt(visits: Sequence[Visit], record: Record) -> dict[str, float]:
    end = record.scenario.duration
    heard = [visit for visit in visits if visit.ending not in _FAILED]
    firsts = [first_token(visit, end) for visit in heard]
    waits = [queued(visit, end) for visit in heard]
    paces = [pace for visit in heard if (pace := per_token(visit)) is not None]
    failed = sum(1 for visit in visits if visit.ending in _FAILED)
    answered = [visit for visit in visits if visit.ending is Ending.ANSWERED]
    read = sum(visit.prompt for visit in visits if visit.first is not None)
    return {
        "asked": float(len(visits)),
        "answered": float(len(answered)),
        "failed": float(failed),
        "wait_p50": quantile(waits, 0.5),
        "wait_p99": quantile(waits, 0.99),
        "ttft_p50": quantile(firsts, 0.5),
        "ttft_p99": quantile(firsts, 0.99),
        "tpot_p50": quantile(paces, 0.5),
        "tpot_p99": quantile(paces, 0.99),
        "good": _good(visits, record),
        "hit_rate": sum(visit.cached for visit in visits) / read if read else 0.0,
    }


def _good(visits: Sequence[Visit], record: Record) -> float:
    """The part of the requests whose fate is known that met both objectives."""
    longest, slowest = record.scenario.slo
    good = known = 0
    for visit in visits:
        late = first_token(visit, record.scenario.duration) > longest
        pace = per_token(visit)
        done = visit.ending is not None
        known += late or done
        good += done and not late and visit.ending is Ending.ANSWERED and (pace is None or pace <= slowest)
    return good / known if known else float("nan")


def _rates(record: Record, group: str) -> dict[str, float]:
    """Rates over the whole run: how fast a machine fills up is part of what it can do."""
    start = int(record.scenario.warm_up)
    seconds = record.scenario.duration
    ledgers = [ledger for ledger in record.users.values() if not group or ledger.group == group]
    prompt = sum(sum(ledger.prompt) for ledger in ledgers)
    output = sum(sum(ledger.output) for ledger in ledgers)
    return {
        "output_rate": output / seconds,
        "token_rate": (prompt + output) / seconds,
        "gpu_seconds": sum(sum(ledger.gpu[start:]) for ledger in ledgers),
        "least_share": _least_share(record, ledgers, start) if group else 1.0,
    }


def _least_share(record: Record, ledgers: Sequence[UserLedger], start: int) -> float:
    """The smallest part of all service that the users got in any window of 60 s."""
    mine = _summed(weighted(ledger) for ledger in ledgers)
    total = _summed(weighted(ledger) for ledger in record.users.values())
    last = int(record.scenario.duration)
    span = min(FLOOR_SECONDS, last - start)
    shares = [
        (mine[at + span] - mine[at]) / (total[at + span] - total[at])
        for at in range(start, last - span + 1)
        if total[at + span] > total[at]
    ]
    return min(shares, default=0.0)


def _summed(series: Iterable[Sequence[float]]) -> list[float]:
    """Running totals of the sum of several series, beginning with 0."""
    columns = zip(*series, strict=True)
    return list(accumulate((sum(column) for column in columns), initial=0.0))


# --------------------------------------------------------------------------------------------- who got what


def _fairness(record: Record) -> dict[str, float]:
    start, group = int(record.scenario.warm_up), record.scenario.contenders
    rivals = [ledger for ledger in record.users.values() if not group or ledger.group == group]
    got = [float(sum(weighted(ledger)[start:])) for ledger in rivals]
    least = min(got, default=0.0)
    return {
        "jain": evenness(got),
        "most_to_least": max(got) / least if least else float("nan"),
        "jain_gpu": evenness([sum(ledger.gpu[start:]) for ledger in rivals]),
        "service_difference": service_difference(rivals, start),
        "max_min": _max_min(record),
    }


def service_difference(ledgers: Sequence[UserLedger], start: int) -> float:
    """The largest difference of service (weighted tokens) that grew while both of two users had something waiting."""
    services = [weighted(ledger) for ledger in ledgers]
    largest = 0.0
    for (one, first), (other, second) in combinations(zip(ledgers, services, strict=True), 2):
        apart = 0.0
        for at in range(start, len(first)):
            if one.least_waiting[at] and other.least_waiting[at]:
                apart += first[at] - second[at]
                largest = max(largest, abs(apart))
            else:
                apart = 0.0
    return largest


def _max_min(record: Record) -> float:
    """The least part of a max-min fair share that any user got.

    A user asked for what they got and for all of their requests that were not begun: how fast an engine writes
    what it has begun is no matter of shares.
    """
    start = int(record.scenario.warm_up)
    got = {user: sum(weighted(ledger)[start:]) for user, ledger in record.users.items()}
    asked = dict(got)
    for visit in record.visits:
        if visit.first is None and visit.ending not in _FAILED:
            asked[visit.flow.user] += visit.prompt * _PRICES.prompt_price + visit.output * _PRICES.output_price
    fair = max_min_shares(asked, sum(got.values()))
    return min((got[user] / due for user, due in fair.items() if due > 0), default=1.0)


# --------------------------------------------------------------------------------------------- the machines


def _machines(record: Record) -> dict[str, float]:
    start = int(record.scenario.warm_up)
    seconds = record.scenario.duration - start
    used = [sum(ledger.work[start:]) / seconds for ledger in record.instances.values()]
    mean = sum(used) / len(used)
    paces: dict[str, list[float]] = {}
    for visit in record.visits:
        pace = per_token(visit)
        if pace is not None and visit.arrived >= start:
            paces.setdefault(visit.instance, []).append(pace)
    limits = [limit for ledger in record.instances.values() for limit in ledger.limits[-_LAST_LIMITS:]]
    limit = sum(limits) / len(limits) if limits else float("nan")
    knee = record.scenario.knee
    queues = [waiting for ledger in record.instances.values() for waiting in ledger.waiting[start:]]
    return {
        "utilisation": mean,
        "utilisation_spread": max(abs(one - mean) for one in used) / mean if mean else 0.0,
        "tpot_worst_instance": max((quantile(values, 0.5) for values in paces.values()), default=float("nan")),
        "engine_waiting_p99": quantile(queues, 0.99),
        "preemptions": float(sum(ledger.preemptions for ledger in record.instances.values())),
        "limit": limit,
        **({"limit_off_knee": abs(limit / knee - 1)} if knee else {}),
    }


def _outages(record: Record) -> dict[str, float]:
    """Errors of requests that came during an outage, and how long an engine took to be of full use again."""
    machines = [machine for machine in record.scenario.machines if machine.outages]
    if not machines:
        return {}
    windows = [(outage.start, outage.stop) for machine in machines for outage in machine.outages]
    hit = [visit for visit in record.visits if any(start <= visit.arrived < stop for start, stop in windows)]
    failed = sum(1 for visit in hit if visit.ending in _FAILED)
    refusals = sum(record.instances[machine.name].refusals for machine in machines)
    return {
        "errors_in_outage": failed / len(hit) if hit else 0.0,
        "refused_attempts": float(refusals) / len(windows),
        "recovery": max(_recovery(record, machine.name, out.stop) for machine in machines for out in machine.outages),
    }


def _recovery(record: Record, name: str, stop: float) -> float:
    """Seconds after the outage until the engine has four fifths of what the others have in flight, on average."""
    mine = record.instances[name].in_flight
    others = [ledger.in_flight for other, ledger in record.instances.items() if other != name]
    for second in range(int(stop), len(mine)):
        usual = sum(series[second] for series in others) / max(1, len(others))
        if mine[second] >= 0.8 * usual:
            return second + 1 - stop
    return record.scenario.duration - stop
