"""Make the preferred answer of a pair likelier against a reference, the rejected one less so."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch import segments
from strop.method.charts import LineChart
from strop.method.part import Result, require, require_one_of
from strop.parts.loss.bound._pairs import (
    CHARTS,
    LOSSES,
    PANEL,
    gain,
    over_tokens,
    pair_metrics,
    pairs_of,
)


@dataclass(frozen=True)
class PreferOverReference:
    """Of two answers to a prompt the preferred one gains on the other, measured by a reference.

        d = sum over the answer's tokens of (logp - reference_weight * logp_ref)
        z = beta * (d_chosen - d_rejected)
        objective of a prompt = mean over its pairs of
            sigmoid: (1 - label_smoothing) log sigmoid(z) + label_smoothing log sigmoid(-z)
            hinge:   -max(0, 1 - z)
            ipo:     -(d_chosen - d_rejected - 1 / (2 beta))^2, d divided by the answer's tokens

    The answers' tokens share the objective equally, so any average of sequence sums fits.
    Metrics: preference/accuracy, /reward_chosen, /reward_rejected (beta d), /margin.

    Reads: logp_T, logp_ref_T [T] float, preferred_B, group_B [B] int (1 preferred, -1 rejected),
    num_groups int, rollout_T [T] int, gradient_T [T] bool.   Writes: objective_T [T] float.
    Source: arXiv 2305.18290, eq. 7; code huggingface/trl dpo_trainer.py; reference_weight: arXiv
    2405.19534; ipo: arXiv 2310.12036, eq. 17.
    Differs from the source: ipo takes d per token, as TRL does; its paper takes sums.
    Nearest part: prefer_by_likelihood, which has no reference.
    Edges: policy = reference at reference_weight 1 -> log(1/2), in "hinge" -1, in "ipo"
    -1 / (2 beta)^2; a prompt without both kinds -> 0, no gradient.
    """

    scope: ClassVar[str] = "update"
    charts: ClassVar[tuple[LineChart, ...]] = CHARTS
    panel: ClassVar[tuple[str, ...]] = PANEL
    # Strength of the pull to the reference, per nat. Default: paper (0.1).
    beta: float = 0.1
    # "sigmoid", "hinge" or "ipo". Default: paper (eq. 7).
    loss_type: str = "sigmoid"
    # Share of pairs that are taken to be labelled wrongly; sigmoid only. Default: paper (none).
    label_smoothing: float = 0.0
    # Weight of the reference's log-probabilities. Default: paper (1).
    reference_weight: float = 1.0

    def __post_init__(self) -> None:
        require(self, "beta", low=1e-9)
        require_one_of(self, "loss_type", (*LOSSES, "ipo"))
        require(self, "label_smoothing", low=0.0, high=0.5)
        require(self, "reference_weight")

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
        lead_T = logp_T - self.reference_weight * logp_ref_T.detach()
        lead_B = segments.total(lead_T, rollout_T, group_B.shape[0], gradient_T)
        better_N, worse_N = lead_B[pairs.chosen_N], lead_B[pairs.rejected_N]
        logit_N = self.beta * (better_N - worse_N)
        if self.loss_type == "ipo":
            mean_B = lead_B / pairs.count_B.clamp(min=1)
            gap_N = mean_B[pairs.chosen_N] - mean_B[pairs.rejected_N]
            gain_N = -((gap_N - 1 / (2 * self.beta)) ** 2)
        else:
            gain_N = gain(logit_N, self.loss_type, self.label_smoothing)
        objective_T = over_tokens(gain_N, pairs, group_B, num_groups, rollout_T, gradient_T)
        metrics = pair_metrics(logit_N, self.beta * better_N, self.beta * worse_N)
        return Result(objective_T, metrics=metrics)
