"""What a training step acts on."""

import functools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.batch.kept import check_known
from strop.engines.base import Engine
from strop.engines.pool.one_per_process import ParallelEngine
from strop.method.algorithm import Algorithm
from strop.method.chains import Chains
from strop.method.schedule import Schedule
from strop.support.errors import UserError
from strop.training.learner.critic import Critic
from strop.training.learner.policy import Policy
from strop.training.learner.served_reference import ServedReference
from strop.training.learner.step_metrics import Clock
from strop.training.learner.step_models import StepModels
from strop.training.learner.weight_copies import WeightCopies
from strop.training.parallel.ranks import Ranks
from strop.training.services.run import RunServices
from strop.training.services.texts import Limits


class BatchCollector:
    """Gives every step its batch: in this process, or ahead in another one.

    What is written out here holds for one that begins nothing before its step.
    """

    def begin(self, step: int, state: Mapping[str, Any]) -> None:
        """What can be made ready for a step, so that it loads while the trainer does something."""

    def collect(
        self, world: "World", algorithm: Algorithm, step: int, chains: Chains, clock: Clock
    ) -> Batch:
        """The curated batch of a step; state and metrics are those of `chains`."""
        raise NotImplementedError

    def renew(self, step: int) -> None:
        """The weights of now are those after `step`."""

    def learnt(self, step: int, batch: Batch) -> None:
        """The step has been trained on this batch."""

    def kept(self, done: int) -> dict[str, Any]:
        """What a checkpoint of step `done` holds of the steps to come, under names of its own."""
        return {}

    def take_up(self, kept: Mapping[str, Any]) -> None:
        """Go on with what a checkpoint held."""

    def close(self) -> None:
        """End what was begun."""


@dataclass
class World:
    """What a step acts on: models, engine, services and the settings of the run."""

    policy: Policy
    reference: Policy | None
    engine: Engine
    services: RunServices
    pool: Sequence[int]
    seed: int
    num_steps: int
    lr: float | Schedule
    collector: BatchCollector
    critic: Critic | None = None
    limits: tuple[Limits, ...] = ()  # of every phase of the method
    served: ServedReference | None = None  # a reference that is elsewhere
    copies: WeightCopies | None = None  # of the policy's weights, where the method keeps any

    @functools.cached_property
    def known(self) -> Container[int]:
        """The prompts of the pool, to look one up."""
        return frozenset(self.pool) if isinstance(self.pool, tuple) else self.pool

    @property
    def ranks(self) -> Ranks:
        """The processes of the run."""
        return self.policy.ranks

    def whole(self) -> None:
        """Put the newest weights into the model that was loaded, where shards are trained."""
        if self.policy.shell is not None:
            self.policy.shell.whole()

    def take_over(self) -> None:
        """Train the weights that the model that was loaded holds, where shards are trained."""
        if self.policy.shell is not None:
            self.policy.shell.take_over()

    def run_columns(self, algorithm: Algorithm, step: int) -> dict[str, Tensor]:
        """The columns of the run as a whole."""
        use, longest = algorithm.rollout, self.services.limits.episode_tokens
        if use.part.max_tokens not in (0, longest):
            raise UserError(
                f"{use.label}.max_tokens was moved to {use.part.max_tokens}: it is {longest} for "
                "the whole run, which has room for that"
            )
        numbers = {"step": step, "num_steps": self.num_steps, "max_length": longest}
        return {name: torch.tensor(value) for name, value in numbers.items()}

    def collect(self, algorithm: Algorithm, chains: Chains, step: int, clock: Clock) -> Batch:
        """Stages 1 to 4 of a step. Raises UserError where kept sets are needed and not known."""
        batch = self.collector.collect(self, algorithm, step, chains, clock)
        if algorithm.rollout.part.renormalises:
            check_known(batch)
        return batch

    def renew_engine(self, step: int) -> None:
        """Sample with the weights of now, which are those after `step`."""
        self.engine.load_weights(None, step)
        self.collector.renew(step)

    def act(self, algorithm: Algorithm, phase: int = 1) -> StepModels:
        """The models at the temperature of the rollouts, for a step and what its parts ask for.

        phase: of the method, whose limits hold from now on.
        """
        if self.limits:
            self.services.limit_to(self.limits[phase - 1])
        if isinstance(self.engine, ParallelEngine):
            self.engine.dealing = not algorithm.rollout.part.ends_others
        temperature = algorithm.rollout.part.temperature
        models = StepModels(self.policy, temperature, self.reference, self.critic, self.served)
        self.services.scoring.models = models
        return models
