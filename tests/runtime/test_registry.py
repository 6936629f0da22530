"""The registry: what may be registered, who is told, and what outlasts the process."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from headrace.errors import HeadraceError
from headrace.model import Drained, Engine, Event, Instance, Reconfigured, ServedModel
from headrace.runtime.registry import MOST, Registered, Registry


class Ears:
    """Hears what a registry tells, in order."""

    def __init__(self) -> None:
        self.heard: list[Event | tuple[str, ...]] = []
        self.changes = 0

    def step(self, event: Event) -> None:
        """The scheduler."""
        self.heard.append(event)

    def follow(self, instances: Sequence[Instance]) -> None:
        """Who watches the instances."""
        self.heard.append(tuple(instance.id for instance in instances))

    def changed(self) -> None:
        """Who keeps them."""
        self.changes += 1


def vllm(name: str, address: str = "", *models: str, key: str | None = None) -> Instance:
    """An engine at an address of its own."""
    served = tuple(ServedModel(name=model) for model in models or ("m",))
    return Instance(id=name, address=address or f"http://{name}", engine=Engine.VLLM, models=served, api_key_env=key)


def registry(ears: Ears, *configured: Instance) -> Registry:
    """One whose instances' keys are all missing, except `GOOD_KEY`."""
    keys = {"GOOD_KEY": "k"}
    return Registry(configured, ears.step, follow=ears.follow, key=keys.get, changed=ears.changed)


def test_an_instance_is_used_as_soon_as_it_is_added_and_left_as_soon_as_it_is_removed() -> None:
    """Who watches the instances is told first, then the scheduler, then who keeps them."""
    ears = Ears()
    known = registry(ears, vllm("a"))
    assert known.add(vllm("b"), "admin") == ()
    known.remove("b")
    assert ears.heard == [("a", "b"), Reconfigured((vllm("a"), vllm("b"))), ("a",), Reconfigured((vllm("a"),))]
    assert ears.changes == 2
    assert known.instances == (Registered(vllm("a"), "config"),)


@pytest.mark.parametrize(
    ("address", "models", "code"),
    [
        ("http://a", ("m",), "instance_exists"),
        ("http://a/", ("x", "m"), "instance_exists"),
        ("HTTP://A:80/v1", ("m",), "instance_exists"),
        ("http://a:8000", ("m",), None),
        ("https://a", ("m",), None),
        ("http://a", ("n",), None),
        ("http://a/team", ("m",), None),
    ],
)
def test_the_same_model_at_the_same_address_is_refused(address: str, models: tuple[str, ...], code: str | None) -> None:
    """However the address is spelt; other models there, and other ports and paths, are welcome."""
    ears = Ears()
    known = registry(ears, vllm("a", "http://a", "m"))
    if code is None:
        known.add(vllm("b", address, *models), "admin")
        return
    with pytest.raises(HeadraceError) as refused:
        known.add(vllm("b", address, *models), "admin")
    fault = refused.value.fault
    assert (fault.status, fault.code, fault.param) == (409, code, "models")
    assert "'a' serves the model 'm'" in fault.message
    assert ears.heard == []


def test_an_id_is_taken_once() -> None:
    """The answer says what to do instead."""
    known = registry(Ears(), vllm("a"))
    with pytest.raises(HeadraceError, match="remove it first, or take another id") as refused:
        known.add(vllm("a", "http://elsewhere"), "admin")
    assert refused.value.fault.status == 409


def test_the_number_of_instances_is_bounded() -> None:
    """One more than the bound is refused, a change of one is not."""
    known = registry(Ears(), *(vllm(f"i{number}") for number in range(MOST)))
    with pytest.raises(HeadraceError, match="1000 instances") as refused:
        known.add(vllm("more"), "admin")
    assert refused.value.fault.code == "too_many_instances"
    known.replace("i0", vllm("i0", "http://elsewhere"))


def test_a_star_beside_a_name_and_a_missing_key_are_told() -> None:
    """Both can be meant, so they are warnings."""
    known = registry(Ears(), vllm("a", "http://a", "*"))
    said = known.add(vllm("b", "http://a", "m", key="LOST_KEY"), "admin")
    assert len(said) == 2
    assert "LOST_KEY is not set" in said[0]
    assert "listed with `*` and again with m" in said[1]
    assert known.add(vllm("c", key="GOOD_KEY"), "admin") == ()


def test_what_the_configuration_says_is_changed_for_this_run_only() -> None:
    """The answer says so; what came later is changed for good."""
    known = registry(Ears(), vllm("a"))
    known.add(vllm("b"), "admin")
    assert "once headrace is restarted" in known.replace("a", vllm("a", "http://other"))[0]
    assert known.replace("b", vllm("b", "http://another")) == ()
    assert known.remove("b") == ()
    assert "once headrace is restarted" in known.remove("a")[0]


def test_changes_that_would_clash_change_nothing() -> None:
    """A changed instance may keep its own models, but not take another's."""
    ears = Ears()
    known = registry(ears, vllm("a", "http://one"), vllm("b", "http://two"))
    known.replace("a", vllm("a", "http://one", "m", "n"))
    with pytest.raises(HeadraceError, match="'b' serves the model 'm'"):
        known.replace("a", vllm("a", "http://two"))
    with pytest.raises(ValueError, match="keeps its id"):
        known.replace("a", vllm("c"))
    assert known.instances[0].instance.address == "http://one"


@pytest.mark.parametrize("deed", ["remove", "drain", "undrain"])
def test_what_is_not_there_cannot_be_worked_on(deed: str) -> None:
    """404, with where to look."""
    known = registry(Ears(), vllm("a"))
    with pytest.raises(HeadraceError, match="GET /admin/instances") as refused:
        getattr(known, deed)("x")
    assert refused.value.fault.status == 404


def test_drains_are_told_shown_and_kept_until_they_are_taken_back() -> None:
    """Also of configured instances; a change of an instance leaves its drain alone."""
    ears = Ears()
    known = registry(ears, vllm("a"))
    known.drain("a")
    known.replace("a", vllm("a", "http://new"))
    assert known.instances[0].draining
    assert known.drained == {"a"}
    known.undrain("a")
    assert [event for event in ears.heard if isinstance(event, Drained)] == [Drained("a"), Drained("a", draining=False)]
    assert known.drained == set()


def test_after_a_restart_the_configuration_wins_and_the_rest_is_there_again() -> None:
    """Kept ones that clash with it are left out; drains hold for both kinds, and for nobody who is gone. The log tells
    all of it: the start of the gateway shows only the file's."""
    ears = Ears()
    known = registry(ears, vllm("a"), vllm("new", "http://taken"))
    kept = [
        Registered(vllm("b"), "admin"),
        Registered(vllm("a", "http://old"), "admin"),
        Registered(vllm("c", "http://taken/v1"), "discovered:http://taken"),
        Registered(vllm("d"), "discovered:http://d"),
    ]
    with capture_logs() as logs:
        known.restore(kept, ["a", "d", "gone"])
    assert [(entry.instance.id, entry.source, entry.draining) for entry in known.instances] == [
        ("a", "config", True),
        ("new", "config", False),
        ("b", "admin", False),
        ("d", "discovered:http://d", True),
    ]
    assert ears.heard[0] == ("a", "new", "b", "d")
    assert ears.heard[2:] == [Drained("a"), Drained("d")]
    assert [entry.instance.id for entry in known.kept] == ["b", "d"]
    assert [(line["instance"], line["event"].split()[-1]) for line in logs] == [
        ("b", "again"),
        ("a", "out"),
        ("c", "out"),
        ("d", "again"),
        ("a", "is"),
        ("d", "is"),
    ]
