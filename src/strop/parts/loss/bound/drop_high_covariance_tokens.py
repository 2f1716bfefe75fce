"""Exclude from learning a few of the tokens that would cost the most entropy."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Result, require
from strop.parts.loss.bound._bounds import clip


@dataclass(frozen=True)
class DropHighCovarianceTokens:
    """Beside the usual clip, a random few tokens that are both likely and good get no gradient.

        objective_t = c_t * min(rho_t * A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) * A_t)
        cov_t = (A_t - mean A) * (logp_t - mean logp);  candidates: cov_low < cov_t < cov_high
        c_t = 0 on max(int(drop_share * N), 1) candidates drawn at random, else 1

    Means and N are over gradient_T of the update; tokens that the clip holds are no candidates.
    `dropped_T` replaces the draw, `candidate_T` the candidates, `num_drop` their number.

    Reads: log_ratio_T [T], logp_T [T], advantage_T [T] float, gradient_T [T] bool, and where given
    dropped_T [T] bool, candidate_T [T] bool, num_drop [] int.   Writes: objective_T [T] float.
    Source: arXiv 2505.22617, eq. 10 to 12, listing 1.
    Differs from the source: means and N are of the update, the released code's of a micro-batch.
    Nearest part: clip_both_sides; equal to it when no token is a candidate.
    Edges: fewer candidates than the number -> all of them; a dropped token stays in averages.
    """

    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "dropped_T",
            "bool",
            "tokens that are dropped",
            door=("dropped_tokens",),
            random="flag:0.2",
        ),
        Column(
            "candidate_T",
            "bool",
            "tokens that may be dropped",
            door=("candidate_tokens",),
            random="flag:0.2",
        ),
        Column("num_drop", "int", "number to drop", "tokens", door=("n_drop",), random="2"),
    )

    scope: ClassVar[str] = "update"
    # Width below 1, a share of the ratio. Default: released code (PRIME-RL).
    clip_low: float = 0.2
    # Width above 1, a share of the ratio. Default: released code (PRIME-RL).
    clip_high: float = 0.2
    # Share of the update's tokens that is dropped. Default: paper (experiments).
    drop_share: float = 2e-4
    # Candidates lie above this covariance, nats times advantage. Default: paper (experiments).
    cov_low: float = 1.0
    # Candidates lie below this covariance, nats times advantage. Default: paper (experiments).
    cov_high: float = 5.0

    def __post_init__(self) -> None:
        require(self, "clip_low", "clip_high", low=0.0)
        require(self, "drop_share", low=0.0, high=1.0)
        require(self, "cov_low", "cov_high")

    def __call__(
        self,
        log_ratio_T: Tensor,
        logp_T: Tensor,
        advantage_T: Tensor,
        gradient_T: Tensor,
        rng: torch.Generator,
        dropped_T: Tensor | None = None,
        candidate_T: Tensor | None = None,
        num_drop: Tensor | None = None,
    ) -> Result:
        clipped = clip(log_ratio_T.exp(), advantage_T, 1 - self.clip_low, 1 + self.clip_high)
        if dropped_T is None:
            if candidate_T is None:
                cov_T = segments.covariance(advantage_T, logp_T, gradient_T)
                candidate_T = (cov_T > self.cov_low) & (cov_T < self.cov_high) & ~clipped.held_T
            share = int(self.drop_share * int(gradient_T.sum()))
            number = max(share, 1) if num_drop is None else int(num_drop)
            dropped_T = _draw(candidate_T.bool() & gradient_T, number, rng)
        objective_T = torch.where(dropped_T.bool(), 0, clipped.value)
        metrics = {
            "clip_ratio/region_mean": clipped.held_T.float(),
            "clip_ratio/covariance_mean": dropped_T.float(),
        }
        return Result(objective_T, metrics=metrics)


def _draw(candidate_T: Tensor, number: int, rng: torch.Generator) -> Tensor:
    """`number` of the candidates (all if fewer), uniformly without replacement, as bool [T]."""
    row = candidate_T.nonzero().squeeze(1)
    order = torch.randperm(row.shape[0], generator=rng, device=rng.device).to(row.device)
    drawn_T = torch.zeros_like(candidate_T)
    drawn_T[row[order[:number]]] = True
    return drawn_T
