"""One grader for several processes: the first runs it and broadcasts its grades, or a Ray actor on
another machine runs it with its worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from strop.rewards.grader import Grader, Grades, without
from strop.rewards.source import RewardSpec
from strop.support.errors import UserError, first_line
from strop.support.exits import Exit
from strop.support.loading import search_path
from strop.training.cluster.connect import (
    MOST_TRIES,
    answer,
    connect,
    enter,
    why_not_running,
)
from strop.training.parallel.ranks import Ranks
from strop.training.settings.config import RunConfig
from strop.training.settings.sections import RaySettings


class SharedGrader(Grader):
    """A grader that all processes call alike; its results and errors reach all of them."""

    def __init__(self, ranks: Ranks, make: Callable[[], Grader]) -> None:
        """make: opens the grader, in the first process."""
        self.ranks = ranks
        self.inner: Grader | None = None

        def start() -> tuple[RewardSpec, ...]:
            self.inner = make()
            return self.inner.specs

        self.specs = ranks.from_first(start)

    @property
    def _grader(self) -> Grader:
        assert self.inner is not None, "the first process has the grader"
        return self.inner

    def check(self, columns: Iterable[str]) -> None:
        """Raise UserError when a reward needs a parameter that is none of these columns."""
        self.ranks.from_first(lambda: self._grader.check(columns))

    def grade(self, *rollouts: Any, **more: Any) -> Grades:
        """Score rollouts under every reward, in the first process."""
        return self.ranks.from_first(lambda: self._grader.grade(*rollouts, **more))

    def close(self) -> None:
        """End the worker processes."""
        if self.inner is not None:
            self.inner.close()


class There:
    """The actor: runs a grader in the working directory of the command."""

    def __init__(self, folder: str, search: list[str]) -> None:
        enter(folder, search)
        self.grader: Grader | None = None

    def begin(self, specs: Sequence[RewardSpec], options: dict[str, Any]) -> Sequence[RewardSpec]:
        """Start the worker processes. Raises UserError as `Grader` does."""
        self.grader = Grader(specs, **options)
        return self.grader.specs

    def do(
        self, specs: Sequence[RewardSpec], options: dict[str, Any], what: str, *given: Any,
        **more: Any,
    ) -> Any:  # fmt: skip
        """Call a method of the grader; a restarted process starts the grader first."""
        if self.grader is None:
            self.begin(specs, options)
        return getattr(self.grader, what)(*given, **more)


class Lost(UserError):
    """The actor is gone, and Ray does not start it again."""


class RayGrader(Grader):
    """A grader in an actor with `ray.cpus_for_rewards` CPUs; Ray restarts it when it dies."""

    def __init__(self, settings: RaySettings, specs: Sequence[RewardSpec], **options: Any) -> None:
        self.ray = connect(settings)
        self.started: tuple[Sequence[RewardSpec], dict[str, Any]] = (tuple(specs), options)
        has, needed = self.ray.cluster_resources().get("CPU", 0), settings.cpus_for_rewards
        if needed > has:
            raise UserError(f"ray.cpus_for_rewards={needed}, and the cluster has {has:g} CPUs")
        self.actor = (
            self.ray.remote(There)
            .options(num_cpus=needed, max_restarts=-1)
            .remote(str(Path.cwd()), search_path())
        )
        try:
            self.specs = tuple(self._called("begin", *self.started))
        except BaseException:
            self.close()
            raise

    def check(self, columns: Iterable[str]) -> None:
        """Raise UserError when a reward needs a parameter that is none of these columns."""
        self._called("do", *self.started, "check", list(columns))

    def grade(self, *rollouts: Any, **more: Any) -> Grades:
        """Score rollouts under every reward; none is scored where Ray cannot start the actor."""
        try:
            found: Grades = self._called("do", *self.started, "grade", *rollouts, **more)
        except Lost as error:
            return without(self.specs, len(rollouts[0]), Exit.START_FAILED, str(error))
        return found

    def close(self) -> None:
        """End the actor and its worker processes."""
        if self.ray.is_initialized():
            self.ray.kill(self.actor)

    def _called(self, method: str, *given: Any, **more: Any) -> Any:
        """The answer of a method of the actor, called again where the actor is lost meanwhile.

        Ray's own tries (max_task_retries) are over before an actor has restarted. Raises Lost.
        """
        for _ in range(MOST_TRIES + 1):
            if why := why_not_running(self.ray, self.actor):
                break
            try:
                return answer(self.ray, getattr(self.actor, method).remote(*given, **more))
            except self.ray.exceptions.RayError as error:
                why = first_line(error)
        raise Lost(f"the actor of the rewards is lost: {why}")


def open_grader(config: RunConfig, specs: Sequence[RewardSpec], ranks: Ranks) -> Grader:
    """The grader of a run, in one or several processes or on Ray. Raises UserError as `Grader`."""
    own, on_ray = config.reward, config.ray.address and config.ray.cpus_for_rewards
    kind = partial(RayGrader, config.ray) if on_ray else Grader

    def make() -> Grader:
        return kind(
            specs, timeout_seconds=own.timeout_seconds, num_workers=own.num_workers,
            max_steps=config.training.steps,
        )  # fmt: skip

    return make() if ranks.alone else SharedGrader(ranks, make)
