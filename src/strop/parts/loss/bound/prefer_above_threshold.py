"""Lift preferred answers above a threshold and push rejected ones below it, each on its own."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import logsigmoid

from strop.batch import segments
from strop.method.part import Result, require
from strop.parts.loss.bound._pairs import over_tokens, pairs_of


@dataclass(frozen=True)
class PreferAboveThreshold:
    """How good an answer is counts, not only that it is better than the other one of its pair.

        d = sum over the answer's tokens of (logp - logp_ref)
        objective of a prompt = mean over its pairs of
            log sigmoid(beta d_chosen - delta) + log sigmoid(-(beta d_rejected - delta))

    The answers' tokens share the objective equally, so any average of sequence sums fits.
    Metric: preference/reward_mean (of beta d over both answers of the pairs).

    Reads: logp_T, logp_ref_T [T] float, preferred_B, group_B [B] int (1 preferred, -1 rejected),
    num_groups int, rollout_T [T] int, gradient_T [T] bool.   Writes: objective_T [T] float.
    Source: arXiv 2404.04656 (BCO), as arXiv 2411.10442 mixes it in.
    Differs from the source: delta is an option; a control moves it to the mean of the steps so far.
    Nearest part: prefer_over_reference, which sees only the difference of the two.
    Edges: policy = reference, delta 0 -> 2 log(1/2); a prompt without both kinds -> 0, no gradient.
    """

    scope: ClassVar[str] = "update"
    # Strength of the pull to the reference, per nat. Default: paper (0.1, arXiv 2411.10442).
    beta: float = 0.1
    # The threshold, in the units of beta d. Default: ours (its value before the first step).
    delta: float = 0.0

    def __post_init__(self) -> None:
        require(self, "beta", low=1e-9)
        require(self, "delta")

    def __call__(
        self,
        logp_T: Tensor,
        logp_ref_T: Tensor,
        preferred_B: Tensor,
        group_B: Tensor,
        rollout_T: Tensor,
        gradient_T: Tensor,
        num_groups: int,
    ) -> Result:
        pairs = pairs_of(preferred_B, group_B, num_groups, rollout_T, gradient_T)
        lead_T = logp_T - logp_ref_T.detach()
        reward_B = self.beta * segments.total(lead_T, rollout_T, group_B.shape[0], gradient_T)
        better_N, worse_N = reward_B[pairs.chosen_N], reward_B[pairs.rejected_N]
        gain_N = logsigmoid(better_N - self.delta) + logsigmoid(self.delta - worse_N)
        objective_T = over_tokens(gain_N, pairs, group_B, num_groups, rollout_T, gradient_T)
        if not gain_N.numel():
            return Result(objective_T)
        mean = (better_N + worse_N).detach().double().sum() / (2 * gain_N.numel())
        return Result(objective_T, metrics={"preference/reward_mean": mean.float()})
