"""What one of several worker processes may use of what the configuration grants them all.

Shares are static: a worker does not know how busy the others are. Whole numbers are split by largest remainder, so that
together they are what was configured; each gets at least 1, which is more than was granted where there are more
workers than places. The spare places of several instances go to different workers.
"""

from __future__ import annotations

from headrace.config.config import Config
from headrace.config.instances import MOST_FOUND, InstanceSection
from headrace.config.sections import LimitSection
from headrace.core.parts import part_of


def share(config: Config, worker: int, workers: int) -> Config:
    """The configuration of `worker` (from 0) of so many; of the only one it is `config` itself."""
    if workers == 1:
        return config

    def part(total: int, shift: int = 0) -> int:
        return part_of(total, worker - shift, workers)

    def limit(section: LimitSection | None) -> LimitSection | None:
        if section is None:
            return None
        numbers = {name: value for name, value in section if isinstance(value, int) and not isinstance(value, bool)}
        return section.model_copy(update={name: part(value) for name, value in numbers.items()})

    scheduling, dedup, limits = config.scheduling, config.dedup, config.limits
    most = scheduling.per_user_in_flight
    return config.model_copy(
        update={
            "server": config.server.model_copy(update={"bodies_limit_bytes": part(config.server.bodies_limit_bytes)}),
            "scheduling": scheduling.model_copy(
                update={
                    "queue_size": part(scheduling.queue_size),
                    "per_user_queue": part(scheduling.per_user_queue),
                    "per_user_in_flight": None if most is None else part(most),
                }
            ),
            "instances": tuple(
                _share_of(section, worker - number, workers) for number, section in enumerate(config.instances)
            ),
            "routing": config.routing.model_copy(update={"retry_reserve": config.routing.retry_reserve / workers}),
            "dedup": dedup.model_copy(
                update={"max_entries": part(dedup.max_entries), "max_bytes": part(dedup.max_bytes)}
            ),
            "limits": limits.model_copy(
                update={"per_user": limit(limits.per_user), "per_tenant": limit(limits.per_tenant)}
            ),
        }
    )


def crowded(config: Config, workers: int) -> tuple[str, ...]:
    """The instances that have fewer places than there are workers, and so will get more requests than configured."""
    return tuple(
        instance.id for instance in config.model_instances() if instance.address and instance.max_concurrent < workers
    )


def _share_of(section: InstanceSection, worker: int, workers: int) -> InstanceSection:
    found = section.max_concurrent == "auto"
    most = MOST_FOUND if section.max_concurrent == "auto" else section.max_concurrent
    window = section.window()
    return section.model_copy(
        update={
            "max_concurrent": part_of(most, worker, workers),
            "adaptive": section.adaptive or found,
            "window_tokens": None if window is None else part_of(window, worker, workers),
        }
    )
