"""The promises of `headrace.core.backlog`: the bounds of the queue."""

from __future__ import annotations

from headrace.core.backlog import Backlog
from headrace.core.settings import QueueSettings
from headrace.core.ticket import Call
from headrace.model import ServiceClass
from tests.core.calls import call, join, pool
from tests.core.script import engine

_POOL = pool(engine("a"))


def made(name: str, user: str = "ann", service_class: ServiceClass = ServiceClass.NORMAL) -> Call:
    """A call."""
    return call(_POOL, name, user, service_class=service_class)


def test_full_by_number_and_by_user() -> None:
    """Three in all, two of one user; what goes makes room; removing twice is fine."""
    backlog = Backlog(QueueSettings(size=3, per_user=2))
    mine = [made("r1"), made("r2")]
    for one in mine:
        backlog.add(one)
    assert backlog.user_full(made("r3"))
    assert not backlog.user_full(made("r4", "bob"))
    backlog.add(made("r5", "bob"))
    assert backlog.bars(made("r6", "carl"))
    backlog.remove(mine[0])
    backlog.remove(mine[0])
    assert len(backlog) == 2
    assert not backlog.user_full(made("r6"))
    assert not backlog.bars(made("r6"))


def test_the_newest_of_the_lowest_class_below_makes_room() -> None:
    """Never an equal, never one that has run before."""
    backlog = Backlog(QueueSettings())
    old, new = made("b1", service_class=ServiceClass.BATCH), made("b2", service_class=ServiceClass.BATCH)
    for one in (old, new, made("n1")):
        backlog.add(one)
    urgent = made("i1", service_class=ServiceClass.INTERACTIVE)
    assert backlog.displaceable(urgent) is new
    new.attempt = 1
    assert backlog.displaceable(urgent) is old
    assert backlog.displaceable(made("b3", service_class=ServiceClass.BATCH)) is None
    backlog.remove(old)
    backlog.remove(new)
    assert backlog.displaceable(made("n2")) is None


def test_a_call_is_counted_where_its_leader_stands_when_it_is_added() -> None:
    """Its leader may change while it is queued: it is taken back from where it was counted."""
    backlog = Backlog(QueueSettings())
    one = made("r1")
    backlog.add(one)
    join(one, "r2", "bob")
    one.drop(one.leader)
    backlog.remove(one)
    assert backlog.by_user(10) == {}
    backlog.add(one)
    assert backlog.by_user(10) == {"acme/bob": 1}
    assert backlog.by_class()[ServiceClass.NORMAL] == 1


def test_the_bound_of_a_user_is_that_of_who_leads_now() -> None:
    """A call whose first leader left counts for the next one."""
    backlog = Backlog(QueueSettings(per_user=1))
    backlog.add(made("r1", "bob"))
    one = made("r2", "ann")
    join(one, "r3", "bob")
    assert not backlog.user_full(one)
    one.drop(one.leader)
    assert backlog.user_full(one)
