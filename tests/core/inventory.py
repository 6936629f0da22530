"""What a scheduler holds at a moment, counted from its own books: after the last request all of it must be zero."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.core.instance_state import InstanceState
from headrace.core.pool import Pool
from headrace.core.scheduler import Scheduler
from headrace.core.share import Node

RESOURCES = (
    "tickets",
    "calls",
    "flights",
    "timers",
    "backlog",
    "backlog_users",
    "backlog_classes",
    "watches",
    "look_ups",
    "queued",
    "share_in_flight",
    "share_holds",
    "gate_in_flight",
    "unstarted",
    "load",
    "probe_leases",
    "limit_leases",
)


def holdings(scheduler: Scheduler, gone: Iterable[InstanceState] = ()) -> dict[str, float]:
    """Everything that was acquired and not released, by resource; `gone`: instances that left the configuration."""
    book, dispatcher = scheduler._book, scheduler._dispatcher
    backlog, states = dispatcher.backlog, [*scheduler._fleet.states.values(), *gone]
    nodes = [node for pool in pools(scheduler) for node in subtree(pool.tree.root)]
    return {
        "tickets": len(book.tickets),
        "calls": len(book.calls),
        "flights": len(book.flights),
        "timers": len(book.timers),
        "backlog": len(backlog),
        "backlog_users": len(backlog._users),
        "backlog_classes": sum(len(calls) for calls in backlog._classes.values()),
        "watches": len(dispatcher._watches),
        "look_ups": len(scheduler._door._looking),
        "queued": sum(node.queued for node in nodes),
        "queued_root": sum(pool.tree.root.queued for pool in pools(scheduler)),
        "share_in_flight_root": sum(pool.tree.root.in_flight for pool in pools(scheduler)),
        "share_in_flight": sum(node.in_flight for node in nodes),
        "share_holds": sum(node.holds for node in nodes),
        "gate_in_flight": sum(state.gate.in_flight for state in states),
        "unstarted": sum(state.gate.unstarted for state in states),
        "load": sum(state.load for state in states),
        "probe_leases": sum(state.breaker._probe is not None for state in states),
        "limit_leases": sum(account.running for account in book.limiter._accounts.values()),
    }


def pools(scheduler: Scheduler) -> set[Pool]:
    """The pools in use: those of the fleet and those that living calls still stand in."""
    return {*scheduler._fleet.pools(), *(call.pool for call in scheduler._book.calls.values())}


def subtree(node: Node[Any]) -> list[Node[Any]]:
    """A node and all below it."""
    found = [node]
    for child in node.children.values():
        found += subtree(child)
    return found


def nothing_held(scheduler: Scheduler) -> bool:
    """Whether all is given back; names what is not."""
    left = {name: count for name, count in holdings(scheduler).items() if count}
    assert not left, f"still held: {left}"
    return True
