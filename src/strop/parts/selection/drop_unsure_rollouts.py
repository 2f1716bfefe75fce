"""Do not train on rollouts that the policy was unsure of, if its first policy was sure."""

import math
from dataclasses import dataclass

from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, Selected, require
from strop.method.schedule import EntropyTarget, Schedule


@dataclass(frozen=True)
class DropUnsureRollouts:
    """Rollouts of high mean entropy have no gradient; they still count in averages.

        rollout i keeps its gradient if mean_{t in i} entropy_old_t <= threshold, or
        initial > threshold: a policy that starts above it is never held to it

    `initial` is the entropy of the first policy; below 0 it is the mean of this very step.
    carry_metric_forward carries it over from the first step.

    Reads: entropy_old_T [T] float, mask_T [T] bool, rollout_T [T] int, scored_B [B] bool.
    Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2508.03772; code winstonsmith1897/GTPO (0.7, whatever the initial entropy).
    Differs from the source: no; an initial entropy at the threshold counts as below it.
    Nearest part: drop_doubtful_rollouts, which uses the reference and the reward.
    Edges: no policy token -> nothing to lose.
    """

    # Highest mean entropy that is trained on, nats. Default: paper (ln 2).
    threshold: float = math.log(2)
    # Entropy of the first policy, nats; below 0: not known yet. Default: ours.
    initial: EntropyTarget = -1.0

    def __post_init__(self) -> None:
        require(self, "threshold", low=0.0)
        require(self, "initial")

    def __call__(
        self, entropy_old_T: Tensor, mask_T: Tensor, rollout_T: Tensor, scored_B: Tensor
    ) -> Result:
        assert not isinstance(self.initial, Schedule)
        own_B = segments.mean(entropy_old_T, rollout_T, scored_B.shape[0], mask_T)
        counts_T = mask_T & scored_B[rollout_T]
        whole = segments.mean(entropy_old_T, rollout_T * 0, 1, counts_T)
        initial = self.initial if self.initial >= 0 else float(whole)
        keep_B = (own_B <= self.threshold) | (initial > self.threshold)
        return Result(Selected(mask_T & keep_B[rollout_T], mask_T, "unsure_rollout"))
