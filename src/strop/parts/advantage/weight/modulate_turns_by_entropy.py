"""Learn more from the turns that the policy was sure of, and like those that lead to such turns."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require

EPS = 1e-8


@dataclass(frozen=True)
class ModulateTurnsByEntropy:
    """Sure turns have a larger share of their rollout's advantage; turns before them get a bonus.

        h_k = (H_k - min H) / (max H - min H + 1e-8), H_k the mean entropy of turn k's tokens
        g_k = exp(-sharpness * h_k) / (mean of exp(-sharpness * h) + 1e-8)
        advantage_k = g_k * advantage_i + bonus * exp(-bonus_sharpness * h_{k+1}), then minus
        the mean of all turns; the last turn of a rollout gets no bonus

    Extremes and means are over the step's turns with policy tokens, of scored rollouts.

    Reads: advantage_B [B] float, entropy_old_T [T] float, mask_T [T] bool, turn_T [T] int,
    rollout_K [K] int, scored_B [B] bool.   Writes: advantage_K [K] float.
    Source: arXiv 2509.09265 (its equations as given in ARL-Arena's paper).
    Differs from the source: no.
    Nearest part: spread_turns, which gives all turns their rollout's advantage.
    Edges: one turn -> 0, since it is its own mean; equal entropies -> every factor is 1.
    """

    writes: ClassVar[tuple[str, ...]] = ("advantage_K",)
    # How fast a turn's share falls with its entropy. Default: paper.
    sharpness: float = 1.0
    # Weight of the bonus for a sure next turn. Default: released code (0.05 in ARL-Arena).
    bonus: float = 0.1
    # How fast the bonus falls with the next turn's entropy. Default: paper.
    bonus_sharpness: float = 1.0

    def __post_init__(self) -> None:
        require(self, "sharpness", "bonus", "bonus_sharpness")

    def __call__(
        self,
        advantage_B: Tensor,
        entropy_old_T: Tensor,
        mask_T: Tensor,
        turn_T: Tensor,
        rollout_K: Tensor,
        scored_B: Tensor,
    ) -> Result:
        num, one_K = rollout_K.shape[0], torch.zeros_like(rollout_K)
        counts_K = (segments.count(turn_T, num, mask_T) > 0) & scored_B[rollout_K]
        entropy_K = segments.mean(entropy_old_T, turn_T, num, mask_T)
        low = segments.extreme(entropy_K, one_K, 1, counts_K, largest=False)
        high = segments.extreme(entropy_K, one_K, 1, counts_K)
        unsure_K = torch.where(counts_K, (entropy_K - low) / (high - low + EPS), 0)
        factor_K = (-self.sharpness * unsure_K).exp()
        factor_K = factor_K / (segments.mean(factor_K, one_K, 1, counts_K) + EPS)
        sure_K = torch.where(counts_K, (-self.bonus_sharpness * unsure_K).exp(), 0)
        bonus_K = torch.where(segments.ends(rollout_K), 0, self.bonus * sure_K.roll(-1))
        advantage_K = factor_K * advantage_B[rollout_K] + bonus_K
        advantage_K = advantage_K - segments.mean(advantage_K, one_K, 1, counts_K)
        metrics = {
            "modulation/factor_std": float(segments.std(factor_K, one_K, 1, counts_K)),
            "modulation/bonus_mean": segments.overall(bonus_K, counts_K),
        }
        return Result(torch.where(counts_K, advantage_K, 0), metrics=metrics)
