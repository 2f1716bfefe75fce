"""Engine workers as Ray actors: Ray starts and restarts them and transports the weights.

The sampling process, or the driver of the trainers, starts them.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from strop.engines.pool.pool import Back, EnginePool, Facts, Lost, News, Order
from strop.support.errors import RunStopped, UserError, first_line
from strop.support.processes import Restarts
from strop.training.cluster.broadcast import Broadcast
from strop.training.cluster.connect import (
    BEGIN_SECONDS,
    LED_ENGINES,
    LOOK_SECONDS,
    NAMESPACE,
    actors_in,
    answer,
    connect,
    cpus_each,
    reserve,
)
from strop.training.cluster.engine_worker import STAGED, EngineWorker, packed
from strop.training.learner.models import Loaded
from strop.training.parallel.ranks import Ranks
from strop.training.settings.config import RunConfig

TURNS = 2  # in flight per engine, so that it works while its last answer is read


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


@dataclass(eq=False)
class Seat:
    """The state of an engine worker. turns, opening: its unanswered calls, in order.

    since: when it started the first of them, as far as this process can tell.
    """

    actor: Any
    restarts: Restarts
    opening: Any = None
    turns: list[Any] = field(default_factory=list)
    since: float = 0.0
    version: int = -1  # of the weights it was given
    staged: int = -1  # of the weights broadcast to it
    outbox: list[Order] = field(default_factory=list)


class RayWorkers:
    """Communicates with the actors; see strop.engines.pool.pool.Workers.

    Ray restarts an actor that dies, on any machine that has room. An actor that does not answer
    within `ray.timeout_seconds` is killed first.
    """

    def __init__(self, config: RunConfig) -> None:
        self.ray = connect(config.ray)
        self.limit = config.ray.timeout_seconds
        self.weights: Any = None  # in the object store
        self.kept: Mapping[str, Any] = {}  # the broadcast weights, for engines that missed them
        self.version = -1
        self.name = uuid.uuid4().hex  # engines obey only the holder that opened them last
        self.engines = existing_or_new(self.ray, config)
        self.broadcast: Broadcast | None = None
        if config.ray.weights == "broadcast":
            self.broadcast = Broadcast(self.ray, self.name)
        self.seats = [
            Seat(actor, Restarts(f"engine {number} was lost"))
            for number, actor in enumerate(self.engines.actors)
        ]

    def facts(self) -> list[Facts]:
        """Open every engine and return its facts. Raises UserError."""
        for worker in self.seats:
            self._open(worker)
        found = []
        for number, worker in enumerate(self.seats):
            try:
                found.append(answer(self.ray, worker.opening))
            except self.ray.exceptions.RayError as error:
                raise UserError(f"engine {number} does not start: {first_line(error)}") from error
            worker.opening = None
        return found

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Put weights into the object store, from which every machine loads them once, or
        broadcast them to the running engines.
        """
        self.version = version
        if self.broadcast is None:
            self.weights = self.ray.put(packed(weights))
            return
        self.weights = None
        self.kept = {name: value.detach().to("cpu", copy=True) for name, value in weights.items()}
        there = [worker for worker in self.seats if worker.opening is None]
        have = self.broadcast.send([worker.actor for worker in there], weights, version)
        for worker, has in zip(there, have, strict=True):
            worker.staged = version if has else -1

    def exchange(
        self, orders: Mapping[int, list[Order]], busy: set[int], wait: float, behind: set[int]
    ) -> list[tuple[int, News]]:
        """Let the engines work and return their news; see Workers."""
        for number, own in orders.items():
            self.seats[number].outbox += own
        for number, worker in enumerate(self.seats):
            renew = worker.version != self.version and number not in behind
            wanted = worker.outbox or renew or number in busy
            if wanted and len(worker.turns) < TURNS and worker.opening is None:
                self._start(worker, renew)
        news: list[tuple[int, News]] = []
        until = time.monotonic() + wait
        while not news and (left := until - time.monotonic()) > 0:
            pending = {
                ref: n for n, worker in enumerate(self.seats)
                for ref in (worker.turns or [worker.opening])[:1] if ref is not None
            }  # fmt: skip
            if not pending:
                break
            seconds = min(LOOK_SECONDS, left)
            ready, _ = self.ray.wait(list(pending), num_returns=1, timeout=seconds)
            if ready:
                ready, _ = self.ray.wait(list(pending), num_returns=len(pending), timeout=0)
            for ref in sorted(ready, key=lambda ref: pending[ref]):
                news += self._answered(pending[ref], ref)
            news += self._overdue()
        return news

    def close(self) -> None:
        """End the engines that this process started."""
        self.engines.end()

    # ---- implementation

    def _open(self, worker: Seat) -> None:
        """Request that the worker opens its engine as soon as its process runs."""
        worker.opening = worker.actor.open.options(max_task_retries=-1).remote(self.name)
        worker.since, worker.version, worker.outbox = time.monotonic(), -1, []
        worker.staged = -1
        if self.broadcast is not None:
            self.broadcast.group = None

    def _start(self, worker: Seat, renew: bool) -> None:
        weights: Any = None
        if renew:
            weights = STAGED if worker.staged == self.version else self._stored()
        if not worker.turns:
            worker.since = time.monotonic()
        worker.turns.append(
            worker.actor.turn.remote(self.name, worker.outbox, weights, self.version)
        )
        worker.outbox = []
        if renew:
            worker.version = self.version

    def _stored(self) -> Any:
        """Returns the newest weights in the object store."""
        if self.weights is None and self.kept:
            self.weights = self.ray.put(packed(self.kept))
        return self.weights

    def _answered(self, number: int, ref: Any) -> list[tuple[int, News]]:
        worker = self.seats[number]
        try:
            news = answer(self.ray, ref)
        except self.ray.exceptions.RayError as error:
            return self._handle_loss(number, first_line(error))
        if not worker.turns:
            worker.opening = None
            return [(number, Back())]
        if news is None:
            return self._handle_loss(number, "it was restarted")
        del worker.turns[0]
        worker.since = time.monotonic()
        worker.restarts.worked()
        return [(number, news)]

    def _handle_loss(self, number: int, why: str) -> list[tuple[int, News]]:
        worker = self.seats[number]
        worker.restarts.count(why)
        had = bool(worker.turns)
        worker.turns = []  # the new process has no holder yet, so earlier calls are void
        self._open(worker)
        return [(number, Lost(why))] if had else []

    def _overdue(self) -> list[tuple[int, News]]:
        """Kill engines that do not answer. Raises RunStopped when none is left for too long."""
        now, news = time.monotonic(), list[tuple[int, News]]()
        for number, worker in enumerate(self.seats):
            if worker.turns and now - worker.since > self.limit:
                self.ray.kill(worker.actor, no_restart=False)
                news += self._handle_loss(number, f"no answer for {self.limit:g} s")
        waits = [now - worker.since for worker in self.seats if worker.opening is not None]
        limit = max(self.limit, BEGIN_SECONDS)
        if len(waits) == len(self.seats) and min(waits) > limit:
            raise RunStopped(
                f"no engine is left, and Ray has started none within {limit:g} s: does a running "
                "machine have room?"
            )
        return news


def open_pool(config: RunConfig, loaded: Loaded, ranks: Ranks) -> EnginePool:
    """Open a pool of `ray.num_engines` engines with the run's settings. Raises UserError.

    ranks: the training processes; each has a pool, and the first broadcasts what its pool receives.
    """
    if getattr(config.engine, "staleness", 0):
        raise UserError(
            "engine.staleness on Ray: a restarted engine lacks the weights of older "
            "steps: leave one of the two out; training.max_staleness trains on old rollouts"
        )
    if getattr(config.engine, "url", ""):
        raise UserError(
            "engine.url on Ray: every engine would be that one server: leave one of the two out"
        )
    opened: list[RayWorkers] = []
    ranks.from_first(lambda: opened.append(RayWorkers(config)))
    workers = opened[0] if opened else None
    alone = config.training.max_staleness > 0 and not config.training.renew_between_tokens
    try:
        engine = EnginePool(workers, loaded.model, ranks.from_first, renews_alone=alone)
        engine.lockstep = ranks.count > 1
        if LED_ENGINES in os.environ:  # they may hold the weights of a lost process
            engine.load_weights(None, 0)
        return engine
    except BaseException:
        if workers is not None:
            workers.close()
        raise
