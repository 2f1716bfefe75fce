"""Keep the next-token choice open above all where learning is about to close it."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require
from strop.support.errors import UserError


@dataclass(frozen=True)
class RewardEntropyByCovariance:
    """The policy is paid for entropy most at the tokens that are both likely and good.

        objective_t = c_t * entropy_t
        c_t = min(scale * softmax_t(cov over its rollout), ceiling) * max_length / length
        cov_t = (A_t - mean A) * (logp_old_t - mean logp_old)

    Means are over gradient_T of the update, the softmax over a rollout's tokens in it. c_t gets no
    gradient. The metric `entropy_control/weight_mean` is the mean of c_t.

    Reads: logp_old_T, advantage_T, entropy_T [T] float, gradient_T [T] bool, rollout_T [T] int,
    num_rollouts int; max_length [] int where length is not 0.
    Writes: objective_T [T] float (nats).
    Source: arXiv 2508.03178; code Qihoo360/Light-IF (compute_entropy_with_cov).
    Differs from the source: cov is that at the start of the step, equal to the current one with one
    update a step; its code lets gradient through logp in c_t and takes means of a micro-batch, and
    has no length.
    Nearest part: reward_entropy; equal to it times scale / length when cov is the same everywhere.
    Edges: a rollout without gradient -> 0; scale 0 -> 0.
    """

    scope: ClassVar[str] = "update"
    # Sum of the weights of a rollout's tokens. Default: released code (cov_alpha).
    scale: float = 10.0
    # Largest weight of a token. Default: released code (ub).
    ceiling: float = 5.0
    # Longest answer that the two are meant for, tokens; 0: they are the same for any longest
    # answer. Default: ours (0).
    length: int = 0

    def __post_init__(self) -> None:
        require(self, "scale", "ceiling", low=0.0)
        require(self, "length", low=0)

    @property
    def unread(self) -> frozenset[str]:
        """The run's longest answer does not matter without a length to compare it with."""
        return frozenset() if self.length else frozenset({"max_length"})

    def __call__(
        self,
        logp_old_T: Tensor,
        advantage_T: Tensor,
        entropy_T: Tensor,
        gradient_T: Tensor,
        rollout_T: Tensor,
        num_rollouts: int,
        max_length: Tensor | None = None,
    ) -> Result:
        cov_T = segments.covariance(advantage_T, logp_old_T.detach(), gradient_T)
        share_T = segments.softmax(cov_T, rollout_T, num_rollouts, gradient_T)
        weight_T = (self.scale * share_T).clamp(max=self.ceiling)
        if self.length:
            if max_length is None:
                raise UserError(
                    "reward_entropy_by_covariance.length needs the run's longest answer: give "
                    "max_length, or set the field to 0"
                )
            weight_T = weight_T * (float(max_length) / self.length)
        metrics = {"entropy_control/weight_mean": weight_T}
        return Result(weight_T * entropy_T, metrics=metrics)
