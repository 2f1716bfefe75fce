"""Do not learn from rollouts that engine and trainer see differently."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop import segments
from strop.part import Result, Selected, require

CLAMP_NATS = 20.0


@dataclass(frozen=True)
class DropMismatchedRollouts:
    """A rollout whose tokens engine and trainer disagree about on average is left out whole.

        l_t = logp_old_t - logp_sampler_t
        w_i = exp(clamp(mean_{t in rollout i, mask_t} l_t, -20, 20))
        rollout i stays if lowest <= w_i <= highest; of it, a turn goes that has exp(l_t) < veto

    What goes leaves gradient and denominator; nothing is weighed anew. Both log-probabilities are
    at the temperature, without the sampler's cuts.
    Metrics: mismatch/dropped_fraction (of the rollouts with a known token), /vetoed_fraction (of
    the turns).

    Reads: logp_old_T, logp_sampler_T [T] float, mask_T [T] bool, rollout_T, turn_T [T] int.
    Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2602.05885 (geometric mismatch rejection and veto); code hkust-nlp/KernelGYM.
    Differs from the source: a token without the engine's log-probability (NaN) counts nowhere.
    Nearest part: truncate_engine_ratio_per_sequence, which weighs instead of dropping.
    Edges: no known token -> stays; (0, inf) and veto 0 -> keeps everything.
    """

    # Smallest mean ratio that stays. Default: paper (0.999).
    lowest: float = 0.999
    # Largest mean ratio that stays. Default: paper (1.001).
    highest: float = 1.001
    # A turn with a token's ratio below this goes; 0: none. Default: paper (1e-4).
    veto: float = 1e-4

    def __post_init__(self) -> None:
        require(self, "lowest", low=0.0)
        require(self, "highest", low=0.0)
        require(self, "veto", low=0.0)

    def __call__(
        self,
        logp_old_T: Tensor,
        logp_sampler_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        turn_T: Tensor,
    ) -> Result:
        num = int(rollout_T.max()) + 1 if rollout_T.numel() else 0
        num_turns = int(turn_T.max()) + 1 if turn_T.numel() else 0
        known_T = mask_T & ~(logp_old_T - logp_sampler_T).isnan()
        log_ratio_T = torch.where(known_T, logp_old_T - logp_sampler_T, 0).double()
        known_B = segments.count(rollout_T, num, known_T) > 0
        known_K = segments.count(turn_T, num_turns, known_T) > 0
        mean_B = segments.mean(log_ratio_T, rollout_T, num, known_T)
        weight_B = mean_B.clamp(-CLAMP_NATS, CLAMP_NATS).exp()
        agree_B = ~known_B | ((weight_B >= self.lowest) & (weight_B <= self.highest))
        vetoed_K = segments.count(turn_T, num_turns, known_T & (log_ratio_T.exp() < self.veto)) > 0
        keep_T = mask_T & agree_B[rollout_T] & ~vetoed_K[turn_T]
        metrics = {
            "mismatch/dropped_fraction": float((~agree_B).sum() / known_B.sum().clamp(min=1)),
            "mismatch/vetoed_fraction": float(vetoed_K.sum() / known_K.sum().clamp(min=1)),
        }
        return Result(Selected(keep_T, keep_T, "engine_mismatch"), metrics=metrics)
