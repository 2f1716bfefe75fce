"""Hold back the few tokens whose learning would cost the most entropy."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class PenaliseHighCovarianceTokens:
    """Nothing is clipped; the tokens that are both likeliest and best pay for moving.

        objective_t = rho_t * A_t - coef * |log_ratio_t| on the penalised tokens
        objective_t = rho_t * A_t elsewhere;   rho = exp(log_ratio)
        penalised: the max(int(share * N), 1) largest (A_t - mean A) * (logp_t - mean logp)

    Means and N are over gradient_T of the update. At log-ratio 0 the penalty has no gradient: it
    acts when a step has several updates.

    Reads: log_ratio_T [T] float, logp_T [T] float, advantage_T [T] float, gradient_T [T] bool.
    Writes: objective_T [T] float.
    Source: arXiv 2505.22617, eq. 13 and 14, listing 1.
    Differs from the source: means and N are of the update, the released code's of a micro-batch.
    Nearest part: drop_high_covariance_tokens, which draws from a band and clips the others.
    Edges: no token with gradient -> none penalised; among equal covariances any.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"order_breaks_ties"})
    scope: ClassVar[str] = "update"
    # Share of the update's tokens that is penalised. Default: paper (32B; 2e-3 for 7B).
    share: float = 2e-4
    # Weight of the penalty, reward units per nat. Default: paper (beta; verl's config has 0.1).
    coef: float = 1.0

    def __post_init__(self) -> None:
        require(self, "share", low=0.0, high=1.0)
        require(self, "coef", low=0.0)

    def __call__(
        self, log_ratio_T: Tensor, logp_T: Tensor, advantage_T: Tensor, gradient_T: Tensor
    ) -> Result:
        cov_T = segments.covariance(advantage_T, logp_T.detach(), gradient_T)
        row = segments.rows_where(gradient_T)
        number = min(max(int(self.share * row.shape[0]), 1), row.shape[0])
        largest_N = segments.largest(segments.at(cov_T, row), number)
        held_T = torch.zeros_like(gradient_T).index_put((row,), largest_N)
        penalty_T = torch.where(held_T, self.coef * log_ratio_T.abs(), 0)
        metrics = {"kl_cov/penalised_mean": held_T.float()}
        return Result(log_ratio_T.exp() * advantage_T - penalty_T, metrics=metrics)
