"""What concerns the most used routes is promised on both doors."""

from __future__ import annotations

import pytest

from tests.server import fakes

ON_BOTH_DOORS = {
    "test_admin",
    "test_admin_instances",
    "test_app",
    "test_connection",
    "test_intake",
    "test_queue",
    "test_streams",
    "test_v1",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test of these modules runs once per door."""
    if metafunc.module.__name__.rpartition(".")[2] in ON_BOTH_DOORS:
        metafunc.parametrize("door", fakes.DOORS, indirect=True)


@pytest.fixture(autouse=True)
def door(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The door that `front_door` opens in this test."""
    name: str = getattr(request, "param", "direct")
    monkeypatch.setattr(fakes, "door", name)
    return name
