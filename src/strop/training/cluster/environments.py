"""Environments on other machines: Ray actors that play episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strop.environments.base import EnvironmentSource
from strop.environments.episodes import CallLimits
from strop.environments.workers import EnvironmentWorkers, EpisodeHost, WorkerLost
from strop.support.errors import first_line
from strop.training.cluster.connect import (
    BEGIN_SECONDS,
    actors_in,
    answer,
    connect,
    enter,
    reserve,
    why_not_running,
)
from strop.training.settings.sections import RaySettings


class EpisodeHostOnRay(EpisodeHost):
    """The actor: plays episodes in the working directory of the command."""

    def __init__(self, folder: str, search: list[str]) -> None:
        super().__init__()
        enter(folder, search)


class RayWorker:
    """A worker in an actor, which Ray restarts when it is lost."""

    def __init__(self, ray: Any, actor: Any, last: Callable[[], None] = lambda: None) -> None:
        self.ray, self.actor, self.last = ray, actor, last
        # Its process may not run yet; until an episode begins it has not imported the environment.
        self.is_new = True

    def call(self, method: str, *given: Any, seconds: float) -> Any:
        """Call a method of `EpisodeHost`; see strop.environments.workers.Worker."""
        if self.is_new:
            if why := why_not_running(self.ray, self.actor):
                raise WorkerLost(why)
            seconds += BEGIN_SECONDS
        ref = getattr(self.actor, method).remote(*given)
        try:
            found = answer(self.ray, ref, seconds)
        except self.ray.exceptions.GetTimeoutError:
            self.ray.kill(self.actor, no_restart=False)
            self.is_new = True
            raise TimeoutError from None
        except self.ray.exceptions.RayError as error:
            self.is_new = True
            raise WorkerLost(first_line(error)) from error
        if method == "begin":
            self.is_new = False
        return found

    def close(self) -> None:
        """End the actor; the last one frees the resources."""
        if self.ray.is_initialized():
            self.ray.kill(self.actor)
            self.last()


def workers_on_ray(
    settings: RaySettings, source: EnvironmentSource, limits: CallLimits
) -> EnvironmentWorkers:
    """Start `ray.num_environments` actors that play episodes. Raises UserError."""
    ray = connect(settings)
    bundle = {"CPU": float(settings.cpus_per_environment)}
    group = reserve(ray, [bundle] * settings.num_environments, "the environments")
    workers = [RayWorker(ray, actor) for actor in actors_in(ray, group, EpisodeHostOnRay)]
    workers[-1].last = lambda: ray.util.remove_placement_group(group)
    return EnvironmentWorkers(source, limits, workers)
