"""A part for an experiment: below a floor of entropy, learn from hard groups only.

    [stages]
    selection = '"benchmarks/keep_hard_groups.py:KeepHardGroups"(floor=0.35)'

On-policy, good and bad answers of one prompt pull the same way (see entropy_theorem.py), so the
sign of the advantage cannot choose a direction of entropy; how often a prompt is solved can.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, Selected


@dataclass(frozen=True)
class KeepHardGroups:
    """While H < floor, only groups with less than `share` right answers are learnt from.

    Reads: entropy_old_T, mask_T, rollout_T, reward_B, group_B, num_groups.
    Writes: gradient_T, denominator_T.
    """

    kind: ClassVar[str] = "selection"
    # The rule applies below this entropy, in nats.
    floor: float = 0.35
    # Groups with a smaller mean reward are hard.
    share: float = 0.5

    def __call__(
        self,
        entropy_old_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        reward_B: Tensor,
        group_B: Tensor,
        num_groups: int,
    ) -> Result:
        entropy = float(entropy_old_T[mask_T].mean())
        mean_P = segments.mean(reward_B, group_B, num_groups)
        keep_B = (mean_P < self.share)[group_B] if entropy < self.floor else group_B >= 0
        keep_T = keep_B[rollout_T] & mask_T
        metrics = {"entropy_control/kept_fraction": float(keep_B.double().mean())}
        return Result(Selected(keep_T, keep_T, "easy_group"), metrics=metrics)
