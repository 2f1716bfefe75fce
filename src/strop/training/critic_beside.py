"""A critic that learns in the policy's own passes."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from strop.batch import Batch
from strop.training.critic import Critic
from strop.training.policy import AdjointsOf, Around

ROW = "update:row_B"  # the rollout's row in the update


@dataclass
class CriticBeside:
    """Learns from the states of the passes that an update of the policy makes anyway.

    prepared: all rows of the update. left_B: the rollouts that give the heads a gradient and were
    in no pass yet. asked: the adjoints of some rows' columns.
    """

    critic: Critic
    names: tuple[str, ...]
    prepared: Batch
    left_B: Tensor
    asked: Callable[[Batch], AdjointsOf]

    def seen(self, micro: Batch, around: Around) -> None:
        """Learn from the rollouts of a pass of the policy, whose states these are."""
        rows_B = micro[ROW]
        if not bool(self.left_B[rows_B].any()):
            return
        self.left_B[rows_B] = False
        own = self.prepared.take(rows_B)
        self.critic.push(own, self.names, self.asked(own.narrow(own["mask_T"])), around)

    def left(self) -> Batch:
        """The rows that are still to be learnt from."""
        return self.prepared.keep(self.left_B)
