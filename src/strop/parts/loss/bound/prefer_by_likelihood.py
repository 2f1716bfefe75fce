"""Make the preferred answer of a pair likelier per token than the rejected one, by a margin."""

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
class PreferByLikelihood:
    """Of two answers to a prompt the preferred one is made the likelier, token for token.

        a = mean over the answer's tokens of logp
        z = beta * (a_chosen - a_rejected - gamma_beta_ratio)
        objective of a prompt = mean over its pairs of
            sigmoid: (1 - label_smoothing) log sigmoid(z) + label_smoothing log sigmoid(-z)
            hinge:   -max(0, 1 - z)

    The answers' tokens share the objective equally, so any average of sequence sums fits.
    Metrics: preference/accuracy, /reward_chosen, /reward_rejected (beta a), /margin.

    Reads: logp_T [T] float, preferred_B, group_B [B] int (1 preferred, -1 rejected), num_groups
    int, rollout_T [T] int, gradient_T [T] bool.   Writes: objective_T [T] float.
    Source: arXiv 2405.14734, eq. 6; code princeton-nlp/SimPO simpo_trainer.py.
    Differs from the source: no.
    Nearest part: prefer_over_reference; equal to it for a uniform reference, equal lengths T, a
    beta here that is T times its beta, and no margin.
    Edges: a prompt without both kinds -> 0, no gradient.
    """

    scope: ClassVar[str] = "update"
    charts: ClassVar[tuple[LineChart, ...]] = CHARTS
    panel: ClassVar[tuple[str, ...]] = PANEL
    # Scale of the difference, per nat. Default: released code (2).
    beta: float = 2.0
    # The margin, nats a token; times beta it is the paper's gamma. Default: released code (0.25).
    gamma_beta_ratio: float = 0.25
    # "sigmoid" or "hinge". Default: paper (eq. 6).
    loss_type: str = "sigmoid"
    # Share of pairs that are taken to be labelled wrongly; sigmoid only. Default: paper (none).
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        require(self, "beta", low=1e-9)
        require(self, "gamma_beta_ratio")
        require_one_of(self, "loss_type", LOSSES)
        require(self, "label_smoothing", low=0.0, high=0.5)

    def __call__(
        self,
        logp_T: Tensor,
        preferred_B: Tensor,
        group_B: Tensor,
        rollout_T: Tensor,
        gradient_T: Tensor,
        num_groups: int,
    ) -> Result:
        pairs = pairs_of(preferred_B, group_B, num_groups, rollout_T, gradient_T)
        mean_B = segments.mean(logp_T, rollout_T, group_B.shape[0], gradient_T)
        better_N, worse_N = mean_B[pairs.chosen_N], mean_B[pairs.rejected_N]
        logit_N = self.beta * (better_N - worse_N - self.gamma_beta_ratio)
        gain_N = gain(logit_N, self.loss_type, self.label_smoothing)
        objective_T = over_tokens(gain_N, pairs, group_B, num_groups, rollout_T, gradient_T)
        metrics = pair_metrics(logit_N, self.beta * better_N, self.beta * worse_N)
        return Result(objective_T, metrics=metrics)
