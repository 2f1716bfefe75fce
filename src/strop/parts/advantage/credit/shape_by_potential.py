"""Credit the steps of an answer that bring it closer to a sure and right result."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class ShapeByPotential:
    """Steps that raise the potential learn more, those after it was high learn less.

        advantage_t = advantage_i * f_k + xi * g_k                 for t in step k
        f_k = 1 - alpha * (1 - exp(-C_k)),  C_k: earlier steps with potential > saturation
        g_k = exp(d_k) - mean exp(d),  d = potential_k - potential_{k-1} scaled to [0, 1]

    The change at a rollout's first step is 0; extremes and mean are over all steps of the batch. A
    step ends at a token with a potential; tokens after the last one belong to the last step.
    Metrics: potential/mean, potential/frac_saturated (over steps).

    Reads: advantage_B [B] float, potential_T [T] float (NaN: no step ends here), scored_B [B]
    bool, rollout_T [T] int, mask_T [T] bool.   Writes: advantage_T [T] float.
    Source: arXiv 2601.03823.
    Differs from the source: scopes and the first change are not stated there; see above.
    Nearest part: spread_evenly; equal to it when alpha and xi are 0.
    Edges: rollout without steps -> as spread_evenly; unscored -> 0, its steps count nowhere.
    """

    # Share of the advantage that late steps can lose. Default: paper (0.5).
    alpha: float = 0.5
    # Weight of the change in potential. Default: paper (0.5).
    xi: float = 0.5
    # Potential above which a step counts as solved. Default: released code (its example).
    saturation: float = 0.9

    def __post_init__(self) -> None:
        require(self, "alpha", low=0.0, high=1.0)
        require(self, "xi", "saturation")

    def __call__(
        self,
        advantage_B: Tensor,
        potential_T: Tensor,
        scored_B: Tensor,
        rollout_T: Tensor,
        mask_T: Tensor,
    ) -> Result:
        learns_T = mask_T & segments.at(scored_B, rollout_T)
        ends_T = learns_T & ~potential_T.isnan()
        row_N = segments.rows_where(ends_T)
        plain_T = torch.where(learns_T, segments.at(advantage_B, rollout_T), 0)
        if row_N.shape[0] == 0:
            return Result(plain_T, metrics={"potential/mean": 0.0, "potential/frac_saturated": 0.0})
        potential_N = segments.at(potential_T, row_N).to(plain_T.dtype)
        rollout_N = segments.at(rollout_T, row_N)
        solved_N, num = potential_N > self.saturation, scored_B.shape[0]
        factor_N = 1 - self.alpha * (1 - torch.exp(-_earlier(solved_N, rollout_N, num)))
        bonus_N = self.xi * _bonus(potential_N, rollout_N)
        # The step of a token: the first end at or after it, else its rollout's last end.
        step_T = ends_T.cumsum(0).sub_(ends_T.long()).clamp_(max=row_N.shape[0] - 1)
        beyond_T = segments.at(rollout_N, step_T) != rollout_T
        step_T = step_T.sub_(beyond_T.long()).clamp_(min=0)
        inside_T = learns_T & (segments.at(rollout_N, step_T) == rollout_T)
        factor_T = segments.at(factor_N.to(plain_T.dtype), step_T)
        shaped_T = plain_T * factor_T + segments.at(bonus_N, step_T)
        one_N = torch.zeros_like(rollout_N)
        metrics = {
            "potential/mean": float(segments.mean(potential_N, one_N, 1)),
            "potential/frac_saturated": float(segments.mean(solved_N.double(), one_N, 1)),
        }
        return Result(torch.where(inside_T, shaped_T, plain_T), metrics=metrics)


def _earlier(solved_N: Tensor, rollout_N: Tensor, num: int) -> Tensor:
    """Solved steps of the same rollout before each step [N], float64."""
    before_N = solved_N.cumsum(0).sub_(solved_N.long())
    first_B = segments.first(rollout_N, num).clamp(max=rollout_N.shape[0] - 1)
    return (before_N - segments.at(before_N[first_B], rollout_N)).double()


def _bonus(potential_N: Tensor, rollout_N: Tensor) -> Tensor:
    """exp of the scaled change in potential, minus its mean over all steps [N]."""
    change_N = torch.where(segments.begins(rollout_N), 0, potential_N - potential_N.roll(1))
    low, high = change_N.min(), change_N.max()
    scaled_N = torch.where(high > low, (change_N - low) / (high - low).clamp(min=1e-30), 0)
    return segments.centred(scaled_N.exp(), torch.zeros_like(rollout_N), 1)
