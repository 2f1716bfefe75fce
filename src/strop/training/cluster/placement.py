"""Places engine workers; the sampling process or the driver of the trainers starts them."""

from __future__ import annotations

import os
import uuid
from typing import Any, NamedTuple

import torch

from strop.training.cluster.connect import (
    LED_ENGINES,
    NAMESPACE,
    actors_in,
    cpus_each,
    reserve,
)
from strop.training.cluster.engine_worker import EngineWorker
from strop.training.settings.config import RunConfig


class Engines(NamedTuple):
    """Actors and their resources. name: the prefix of the actors' names."""

    ray: Any
    actors: list[Any]
    group: Any
    name: str

    def end(self) -> None:
        """End the engines that this process started, and release their resources."""
        if self.group is None or not self.ray.is_initialized():
            return
        for actor in self.actors:
            self.ray.kill(actor)
        self.ray.util.remove_placement_group(self.group)


def begin(ray: Any, config: RunConfig) -> Engines:
    """Start `ray.num_engines` actors, which Ray restarts when they die. Raises UserError."""
    settings = config.ray
    cpus = cpus_each(ray, settings)
    bundle = {"CPU": float(cpus), "GPU": settings.gpus_per_engine}
    group = reserve(ray, [bundle] * settings.num_engines, "the engines")
    threads = config.threads or min(cpus, torch.get_num_threads())
    name = f"strop-{uuid.uuid4().hex}"
    actors = actors_in(ray, group, EngineWorker, config.model_dump(), threads, name=name)
    return Engines(ray, actors, group, name)


def existing_or_new(ray: Any, config: RunConfig) -> Engines:
    """Returns the engines that the driver started for this process, else starts new ones.

    Raises UserError.
    """
    name = os.environ.get(LED_ENGINES, "")
    if not name:
        return begin(ray, config)
    count = config.ray.num_engines
    actors = [ray.get_actor(f"{name}-{number}", NAMESPACE) for number in range(count)]
    return Engines(ray, actors, None, name)
