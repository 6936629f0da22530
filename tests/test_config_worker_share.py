"""What each of several workers may use of what the file grants."""

from __future__ import annotations

import pytest

from headrace.config import Config
from headrace.config.worker_share import crowded, share


def _config(**instance: object) -> Config:
    given = {"id": "a", "address": "http://127.0.0.1:1", "engine": "vllm", **instance}
    limits = {"per_user": {"requests_per_minute": 61, "burst": 2.0}}
    return Config.model_validate({"instances": (given, {**given, "id": "b", "models": ["n"]}), "limits": limits})


def test_an_instance_is_shared_out() -> None:
    """Places, the window, the queue and callers' limits are split; what is no quantity stays as it is."""
    config = _config(max_concurrent=9)
    parts = [share(config, worker, 4) for worker in range(4)]
    for number in range(2):
        assert sum(part.model_instances()[number].max_concurrent for part in parts) == 9
        assert sum(part.model_instances()[number].window_tokens or 0 for part in parts) == 3072
    assert [part.scheduling.queue_size for part in parts] == [128] * 4
    rules = [part.limits.per_user for part in parts]
    assert sum(rule.requests_per_minute or 0 for rule in rules if rule is not None) == 61
    assert {rule.burst for rule in rules if rule is not None} == {2.0}
    assert {part.timeouts for part in parts} == {config.timeouts}


def test_spare_places_go_to_different_workers() -> None:
    """Of several instances with one place too many, not the same worker has all of these."""
    parts = [share(_config(max_concurrent=5), worker, 4) for worker in range(4)]
    places = [[instance.max_concurrent for instance in part.model_instances()] for part in parts]
    assert sorted(max(pair) for pair in places) == [1, 1, 2, 2]


def test_a_found_limit_is_found_within_the_share() -> None:
    """`auto` stays adaptive, up to the worker's part of the usual bound."""
    (instance, _) = share(_config(max_concurrent="auto"), 0, 4).model_instances()
    assert (instance.adaptive, instance.max_concurrent) == (True, 64)


@pytest.mark.parametrize(("workers", "named"), [(2, ()), (3, ("a", "b"))])
def test_too_many_workers_are_named(workers: int, named: tuple[str, ...]) -> None:
    """An instance with fewer places than workers cannot be kept to them; the operator is told which."""
    config = _config(max_concurrent=2)
    assert crowded(config, workers) == named
    assert share(config, 0, 1) is config
