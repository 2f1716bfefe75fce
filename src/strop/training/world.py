"""The world of a run: everything that a training step acts on."""

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
    """Gives every step its batch, collected in this process or ahead of time in another one.

    The methods written out here suit a collector that starts nothing before its step.
    """

    def begin(self, step: int, state: Mapping[str, Any]) -> None:
        """Start whatever a step needs that can load while the trainer is busy."""

    def collect(
        self, world: "World", algorithm: Algorithm, step: int, chains: Chains, clock: Clock
    ) -> Batch:
        """The curated batch of a step; state and metrics are those of `chains`."""
        raise NotImplementedError

    def renew(self, step: int) -> None:
        """Called when the current weights are those after `step`."""

    def learnt(self, step: int, batch: Batch) -> None:
        """Called when the step has trained on this batch."""

    def kept(self, done: int) -> dict[str, Any]:
        """The state of later steps that a checkpoint of step `done` stores, under own names."""
        return {}

    def take_up(self, kept: Mapping[str, Any]) -> None:
        """Restore the state that a checkpoint stored."""

    def close(self) -> None:
        """End what was started."""


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
    limits: tuple[Limits, ...] = ()  # one of each phase of the method
    served: ServedReference | None = None  # a reference behind a server
    copies: WeightCopies | None = None  # of the policy's weights, where the method keeps any

    @functools.cached_property
    def known(self) -> Container[int]:
        """The prompts of the pool, for membership tests."""
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
        """Train the loaded model's weights from here on, where shards are trained."""
        if self.policy.shell is not None:
            self.policy.shell.take_over()

    def run_columns(self, algorithm: Algorithm, step: int) -> dict[str, Tensor]:
        """The columns that describe the run as a whole."""
        use, longest = algorithm.rollout, self.services.limits.episode_tokens
        if use.part.max_tokens not in (0, longest):
            raise UserError(
                f"{use.label}.max_tokens was moved to {use.part.max_tokens}: it is {longest} for "
                "the whole run, which has room for that"
            )
        numbers = {"step": step, "num_steps": self.num_steps, "max_length": longest}
        return {name: torch.tensor(value) for name, value in numbers.items()}

    def collect(self, algorithm: Algorithm, chains: Chains, step: int, clock: Clock) -> Batch:
        """Run stages 1 to 4. Raises UserError where kept sets are needed and not known."""
        batch = self.collector.collect(self, algorithm, step, chains, clock)
        if algorithm.rollout.part.renormalises:
            check_known(batch)
        return batch

    def renew_engine(self, step: int) -> None:
        """Sample with the current weights, which are those after `step`."""
        self.engine.load_weights(None, step)
        self.collector.renew(step)

    def act(self, algorithm: Algorithm, phase: int = 1) -> StepModels:
        """The models at the temperature of the rollouts, for a step and its parts' requests.

        phase: of the method; its limits hold from now on.
        """
        if self.limits:
            self.services.limit_to(self.limits[phase - 1])
        if isinstance(self.engine, ParallelEngine):
            self.engine.dealing = not algorithm.rollout.part.ends_others
        temperature = algorithm.rollout.part.temperature
        models = StepModels(self.policy, temperature, self.reference, self.critic, self.served)
        self.services.scoring.models = models
        return models
