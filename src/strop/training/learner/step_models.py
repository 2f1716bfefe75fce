"""The models of a step together, and the temperature at which they are read."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from strop.batch.batch import Batch
from strop.support.errors import UserError
from strop.training.learner.critic import Critic
from strop.training.learner.policy import Policy


@dataclass(frozen=True)
class StepModels:
    """The trained policy and, where something reads them, a reference and a critic.

    temperature: of the step's rollouts. All log-probabilities of the step are taken at it, and all
    further answers drawn: they are of the distribution that the rollouts come from.
    """

    policy: Policy
    temperature: float
    reference: Policy | None = None
    critic: Critic | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names that `columns` accepts."""
        others = {"ref": self.reference, "critic": self.critic}
        return ("current", *(name for name, model in others.items() if model is not None))

    def columns(self, model: str, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        """Columns [T] of the batch under "current" or "ref", or the values of "critic".

        Raises UserError for a model that the run does not have.
        """
        if model not in self.names:
            raise UserError(
                f"no policy {model!r} to score with; this run has {', '.join(self.names)}"
            )
        if model == "critic":
            assert self.critic is not None
            return self.critic.columns(batch, names)
        policy = self.policy if model == "current" else self.reference
        assert policy is not None
        return policy.columns(batch, names, self.temperature)
