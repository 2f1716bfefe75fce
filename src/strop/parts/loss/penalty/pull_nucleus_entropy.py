"""Hold the open choices as open as they were, counting likely tokens only."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch import segments
from strop.head.chunk import column_of, nucleus_entropy
from strop.method.part import Result, require, require_constant, require_one_of
from strop.method.schedule import EntropyTarget, Schedule
from strop.support.errors import UserError


@dataclass(frozen=True)
class PullNucleusEntropy:
    """The entropy of the most open choices is pulled to an anchor, from above and from below.

        objective = -(mean - anchor)^2, or +mean (pull "up");   Hp_t: entropy of the nucleus
        mean = over rollouts of the mean of Hp_t over {t: Hp_t > the rollout's quantile of Hp}

    The nucleus is the smallest set of likeliest tokens of mass top_p, renormalised; with `below`
    the largest set of mass at most top_p. Mean over gradient_T of the update; metric siren/entropy.

    Reads: gradient_T [T] bool, rollout_T [T] int, num_rollouts int; nucleus_entropy_T [T] float, or
    logq_TV [T, V] float where it is not given (padded calls).
    Writes: objective_T [T] float (nats^2).
    Source: code only: Linn3a/siren (the method of arXiv 2509.25133).
    Differs from the source: its nucleus is that of `below`, empty where one token has more mass;
    the square is of the update's mean, its code's of a micro-batch's.
    Nearest part: reward_entropy; equal to it (per sequence) with top_p 1, quantile 0, pull "up",
    up to the one token that is not above the quantile.
    Edges: anchor below 0 -> none yet, 0; equal entropies -> none is above, the rollout counts 0.
    """

    scope: ClassVar[str] = "update"
    # What the mean is pulled to, nats; below 0: none yet. Default: ours.
    anchor: EntropyTarget = 0.5
    # Mass of the nucleus. Default: released code.
    top_p: float = 0.8
    # Choices at or below this quantile of their rollout do not count. Default: released code.
    quantile: float = 0.8
    # "anchor" (squared distance) or "up" (a bonus). Default: paper.
    pull: str = "anchor"
    # The nucleus leaves out the token that crosses top_p. Default: paper (no; its code does).
    below: bool = False

    def __post_init__(self) -> None:
        require(self, "anchor")
        require(self, "top_p", "quantile", low=0.0, high=1.0)
        require_constant(self, "top_p")  # it is in the name of the column
        require_one_of(self, "pull", ("anchor", "up"))

    @property
    def columns(self) -> dict[str, str]:
        """The column of this nucleus."""
        kind = "nucleus_below_entropy" if self.below else "nucleus_entropy"
        return {"nucleus_entropy_T": column_of(kind, self.top_p)}

    def __call__(
        self,
        gradient_T: Tensor,
        rollout_T: Tensor,
        num_rollouts: int,
        nucleus_entropy_T: Tensor | None = None,
        logq_TV: Tensor | None = None,
    ) -> Result:
        assert not isinstance(self.anchor, Schedule)
        if nucleus_entropy_T is None:
            if logq_TV is None:
                raise UserError("pull_nucleus_entropy needs logits, or the entropy of the nucleus")
            nucleus_entropy_T = nucleus_entropy(logq_TV, self.top_p, self.below)
        mean = self._mean(nucleus_entropy_T, gradient_T, rollout_T, num_rollouts)
        metrics = {"siren/entropy": mean.detach()}
        if self.pull == "up":
            objective = mean
        else:
            objective = -(mean - self.anchor).square() if self.anchor >= 0 else mean * 0
        return Result(objective.expand(gradient_T.shape), metrics=metrics)

    def _mean(self, entropy_T: Tensor, gradient_T: Tensor, rollout_T: Tensor, num: int) -> Tensor:
        """The mean [] over rollouts of the mean entropy of their most open choices."""
        level_B = segments.quantile(entropy_T.detach(), rollout_T, num, self.quantile, gradient_T)
        open_T = gradient_T & (entropy_T.detach() > level_B[rollout_T])
        mean_B = segments.mean(entropy_T, rollout_T, num, open_T)
        counts = (segments.count(rollout_T, num, gradient_T) > 0).sum().clamp(min=1)
        return mean_B.sum() / counts
