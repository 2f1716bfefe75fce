"""Training processes as Ray actors, each with the environment that torchrun would give it."""

from __future__ import annotations

import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from strop.api.session import new_folder
from strop.cli.train_here import Job, kept, work
from strop.support.errors import PLAIN, RunStopped, UserError, first_line, plain_name
from strop.support.processes import Restarts
from strop.support.stopping import asking_first, explained
from strop.support.writing import writing
from strop.training.cluster.connect import (
    BEGIN_SECONDS,
    LED,
    LED_ENGINES,
    LOOK_SECONDS,
    actors_in,
    answer,
    connect,
    enter,
    reserve,
)
from strop.training.cluster.engine_actors import Engines, begin
from strop.training.parallel import relaunched as launched
from strop.training.parallel import watchdog as signs
from strop.training.parallel.ranks import Ranks
from strop.training.record import checkpoint
from strop.training.record.lock import in_use
from strop.training.record.versions import read_environment
from strop.training.settings.config import RunConfig

LEAVE_SECONDS = 60.0  # for an ended process to release the run's folder


class Ended(NamedTuple):
    """How a trainer ended: its exit code, and the error's name in PLAIN and message, if any."""

    code: int
    kind: str = ""
    text: str = ""


class TrainerLost(Exception):
    """A trainer, or its machine, is lost; the text says how."""


class Trainer:
    """A process that trains."""

    def __init__(self, folder: str, search: list[str]) -> None:
        """folder: the command's working directory. search: further paths to modules of Python."""
        enter(folder, search)

    def place(self) -> tuple[str, int]:
        """The address of its machine, and its process id."""
        from ray.util import get_node_ip_address

        return get_node_ip_address(), os.getpid()

    def lacks(self, path: str) -> str:
        """The name of its machine if that does not see a path, else empty."""
        return "" if Path(path).exists() else socket.gethostname()

    def train(self, environment: dict[str, str], job: Job) -> Ended:
        """Train as one of several processes; see strop.training.parallel.ranks."""
        os.environ.update(environment)
        try:
            work(job, None)
        except typer.Exit as left:
            return Ended(left.exit_code)
        except SystemExit as left:  # another process reports why
            return Ended(int(left.code or 0))
        except (UserError, RunStopped) as error:
            return Ended(2 if isinstance(error, UserError) else 1, plain_name(error), str(error))
        return Ended(0)


def lead(job: Job, settings: RunConfig, tell: Callable[[str], None]) -> None:
    """Let `ray.num_trainers` actors run a job, and end as they did. tell: prints a line.

    Raises UserError, RunStopped, and typer.Exit after Ctrl-C, as training in this process does.
    """
    ray = connect(settings.ray)
    needed = {"CPU": float(settings.ray.cpus_per_trainer), "GPU": settings.ray.gpus_per_trainer}
    group = reserve(ray, [needed] * settings.ray.num_trainers, "the trainers")
    engines: Engines | None = None
    try:
        place = new_folder(settings.recipe, job.resume or job.out, Ranks())
        with place as folder, explained(lambda: kept(folder)):
            engines = begin(ray, settings)
            if job.resume is None:
                job = job._replace(out=folder)
            ended = Trainers(ray, settings, group, engines, folder).done(job, tell)
    finally:
        if engines is not None:
            engines.end()
        ray.util.remove_placement_group(group)
    _conclude(ended)


class Trainers(NamedTuple):
    """Starts and watches the trainers, and restarts them when one is lost."""

    ray: Any
    settings: RunConfig
    group: Any
    engines: Engines
    folder: Path

    def done(self, job: Job, tell: Callable[[str], None]) -> list[Ended]:
        """How all have ended; when one is lost, all restart from the newest checkpoint.

        Raises RunStopped after `ray.restarts` restarts without a checkpoint between them;
        UserError, KeyboardInterrupt.
        """
        restarts = Restarts("the trainers were lost", self.settings.ray.restarts)
        while True:
            saved, starts = self._saved(), len(read_environment(self.folder))
            trainers: list[Any] = []
            try:
                trainers += self._hired()
                return self._trained(trainers, job)
            except TrainerLost as error:
                if self._saved() > saved:
                    restarts.worked()
                started = (self.folder / "config.toml").exists()
                resume = f"resume with: strop train --resume {self.folder}"
                restarts.count(str(error), f": {resume if started else 'start it again'}")
                if len(read_environment(self.folder)) > starts:
                    job = job.again(self.folder)
                tell(f"{error}; all restart after step {max(self._saved(), 0)}")
            finally:
                for trainer in trainers:
                    self.ray.kill(trainer)
            self._wait_until_left()

    def _saved(self) -> int:
        """The step of the newest checkpoint; -1 if there is none."""
        found = checkpoint.complete(self.folder / "checkpoints")
        return checkpoint.step_of(found[-1]) if found else -1

    def _wait_until_left(self) -> None:
        """Wait until no ended process writes the run any more, for at most `LEAVE_SECONDS`."""
        end = time.monotonic() + LEAVE_SECONDS
        while in_use(self.folder) and time.monotonic() < end:
            time.sleep(0.1)

    def _hired(self) -> list[Any]:
        return actors_in(self.ray, self.group, Trainer, restarts=0)

    def _addresses(self, trainers: Sequence[Any]) -> list[tuple[str, int]]:
        """The addresses of the trainers, once all have started and see the run's folder.

        Raises UserError and RunStopped.
        """
        try:
            places: list[tuple[str, int]] = self.ray.get(
                [trainer.place.remote() for trainer in trainers], timeout=BEGIN_SECONDS
            )
            _check_shared(self.ray, trainers, self.folder)
        except self.ray.exceptions.RayActorError as error:
            raise UserError(f"a trainer does not start: {first_line(error)}") from error
        except self.ray.exceptions.GetTimeoutError as error:
            raise RunStopped(
                f"Ray has not started all trainers within {BEGIN_SECONDS:g} s: is there room for "
                "them on the live machines?"
            ) from error
        return places

    def _trained(self, trainers: Sequence[Any], job: Job) -> list[Ended]:
        """Let all train until all have ended. Raises TrainerLost."""
        places, store = self._addresses(trainers), launched.new_store()
        try:
            return self._watched(trainers, job, places, store)
        except TrainerLost as error:  # a watchdog may have ended it because another was silent
            verdict = signs.verdict(launched.part(store, "0"))
            raise TrainerLost(verdict or str(error)) from error

    def _watched(
        self, trainers: Sequence[Any], job: Job, places: Sequence[tuple[str, int]], store: Any
    ) -> list[Ended]:
        """Let all train, who meet at the store, until all have ended. Raises TrainerLost."""
        from ray.util import get_node_ip_address

        shared = {
            "WORLD_SIZE": str(len(trainers)),
            **launched.started_by(get_node_ip_address(), store.port),
            LED: self.ray.get_runtime_context().gcs_address,
            LED_ENGINES: self.engines.name,
        }
        under_way = [
            trainer.train.remote({**shared, "RANK": str(number), "LOCAL_RANK": "0"}, job)
            for number, trainer in enumerate(trainers)
        ]
        asked: list[bool] = []
        announced = False
        with asking_first(lambda: asked.append(True)):
            while left := self._left(under_way):
                for ref in under_way:
                    if ref not in left:
                        self._outcome(ref, bool(asked))
                if asked and not announced:
                    announced = True
                    _end_gently(self.ray, places)
            return [self._outcome(ref, bool(asked)) for ref in under_way]

    def _left(self, under_way: Sequence[Any]) -> list[Any]:
        """The trainers that have not ended within `LOOK_SECONDS`."""
        _, left = self.ray.wait(list(under_way), num_returns=len(under_way), timeout=LOOK_SECONDS)
        return list(left)

    def _outcome(self, ref: Any, asked: bool) -> Ended:
        """How a trainer ended. Raises TrainerLost; KeyboardInterrupt if an end was requested."""
        try:
            return answer(self.ray, ref)
        except self.ray.exceptions.RayError as error:
            if asked:
                raise KeyboardInterrupt from error
            raise TrainerLost(f"a trainer is lost ({first_line(error)})") from error


def _check_shared(ray: Any, trainers: Sequence[Any], folder: Path) -> None:
    """Raise UserError unless all trainers see the run's folder as this machine does."""
    place = next(path for path in (folder, *folder.parents) if path.is_dir()).resolve()
    mark = place / f".seen-{uuid.uuid4().hex}"
    with writing(place, "the run"):
        mark.touch()
    try:
        lacking = [name for name in ray.get([t.lacks.remote(str(mark)) for t in trainers]) if name]
    finally:
        mark.unlink()
    if lacking:
        raise UserError(
            f"the machine {lacking[0]} does not see {place} as this one does: give --out a folder "
            "that all machines share"
        )


def _end_gently(ray: Any, places: Sequence[tuple[str, int]]) -> None:
    """Send SIGTERM to all trainers: they finish the step and save."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    for address, process in places:
        if address in nodes:
            there = NodeAffinitySchedulingStrategy(nodes[address], soft=False)
            ray.remote(_terminate).options(num_cpus=0, scheduling_strategy=there).remote(process)


def _terminate(process: int) -> None:
    os.kill(process, signal.SIGTERM)


def _conclude(ended: Sequence[Ended]) -> None:
    """End as the trainers did."""
    for each in ended:
        if each.kind:
            raise PLAIN[each.kind](each.text)
    code = max(each.code for each in ended)
    if code:
        raise typer.Exit(code)
