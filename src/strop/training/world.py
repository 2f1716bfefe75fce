"""What a training step acts on."""

from dataclasses import dataclass
from typing import Any

import torch

from strop.algorithm import Algorithm
from strop.errors import UserError
from strop.training.critic import Critic
from strop.training.policy import Policy
from strop.training.services.run import RunServices
from strop.training.step_models import StepModels


@dataclass
class World:
    """What a step acts on: models, engine, services and the settings of the run."""

    policy: Policy
    reference: Policy | None
    engine: Any
    services: RunServices
    pool: tuple[int, ...]
    seed: int
    num_steps: int
    lr: Any  # number or schedule
    critic: Critic | None = None

    def lr_at(self, step: int) -> float:
        """The learning rate of a step, where no control has set it."""
        return float(self.lr(step, self.num_steps) if callable(self.lr) else self.lr)

    def run_columns(self, algorithm: Algorithm, step: int) -> dict[str, torch.Tensor]:
        """The columns of the run as a whole."""
        use, longest = algorithm.rollout, self.services.limits.episode_tokens
        if use.part.max_tokens not in (0, longest):
            raise UserError(
                f"{use.label}.max_tokens was moved to {use.part.max_tokens}: it is {longest} for "
                "the whole run, which has room for that"
            )
        numbers = {"step": step, "num_steps": self.num_steps, "max_length": longest}
        return {name: torch.tensor(value) for name, value in numbers.items()}

    def act(self, algorithm: Algorithm) -> StepModels:
        """The models at the temperature of the rollouts, for a step and what its parts ask for."""
        temperature = algorithm.rollout.part.temperature
        models = StepModels(self.policy, temperature, self.reference, self.critic)
        self.services.score_with(models)
        return models
