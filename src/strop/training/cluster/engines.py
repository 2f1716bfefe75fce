"""The engines' actors: begun by who samples, or by the driver for trainers that may be lost."""

from __future__ import annotations

import os
import uuid
from typing import Any, NamedTuple

import torch

from strop._loading import search_path
from strop.training.cluster.connect import LED_ENGINES, NAMESPACE, cpus_each, reserve
from strop.training.cluster.member import Member
from strop.training.config import RunConfig


class Engines(NamedTuple):
    """Actors and their room. name: what they are found by."""

    ray: Any
    actors: list[Any]
    group: Any
    name: str

    def end(self) -> None:
        """End the engines that were begun here, and give their room back."""
        from ray.util.placement_group import remove_placement_group

        if self.group is None or not self.ray.is_initialized():
            return
        for actor in self.actors:
            self.ray.kill(actor)
        remove_placement_group(self.group)


def begin(ray: Any, config: RunConfig) -> Engines:
    """Begin `ray.num_engines` actors, which Ray begins anew where they die. Raises UserError."""
    settings = config.ray
    cpus = cpus_each(ray, settings)
    bundle = {"CPU": float(cpus), "GPU": settings.gpus_per_engine}
    group = reserve(ray, [bundle] * settings.num_engines, "the engines")
    threads = config.threads or min(cpus, torch.get_num_threads())
    name = f"strop-{uuid.uuid4().hex}"
    actors = [
        _actor(ray, config, number, (cpus, threads), group, f"{name}-{number}")
        for number in range(settings.num_engines)
    ]
    return Engines(ray, actors, group, name)


def _actor(
    ray: Any, config: RunConfig, number: int, room: tuple[int, int], group: Any, name: str
) -> Any:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    cpus, threads = room
    options = {
        "name": name,
        "namespace": NAMESPACE,
        "num_cpus": cpus,
        "num_gpus": config.ray.gpus_per_engine,
        "max_restarts": -1,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=number
        ),
    }
    return ray.remote(Member).options(**options).remote(config.model_dump(), threads, search_path())


def begun_or_new(ray: Any, config: RunConfig) -> Engines:
    """The engines that the driver has begun for this process, else new ones. Raises UserError."""
    name = os.environ.get(LED_ENGINES, "")
    if not name:
        return begin(ray, config)
    count = config.ray.num_engines
    actors = [ray.get_actor(f"{name}-{number}", NAMESPACE) for number in range(count)]
    return Engines(ray, actors, None, name)
