"""Stop pushing a token once its own probability has moved far enough."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.method.part import Result, require, require_one_of

TINY = 1e-8


@dataclass(frozen=True)
class GateByDivergence:
    """A token stops learning when its probability, not its ratio, has moved as far as it may.

        objective_t = sg[min(rho_t, ratio_cap) * valid_t] * A_t * logp_t;   p = exp(logp)
        "tv": a good token is valid while p - p_old <= clip_high, a bad one while >= -clip_low
        "kl": K = p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)); a good token is
              valid while K <= clip_high or p <= p_old, a bad one while K <= clip_low or p >= p_old

    rho and p_old = p / rho are the token's own: the term's ratio is ratio_per_token. A rare token
    may become many times likelier, a common one may not.

    Reads: log_ratio_T, logp_T, advantage_T [T] float.   Writes: objective_T [T] float.
    Source: arXiv 2602.04879; code verl-project/verl:verl/trainer/ppo/core_algos.py (dppo).
    Differs from the source: no.
    Nearest part: weight_by_clipped_ratio, whose tokens always keep a gradient.
    Edges: advantage 0 -> objective 0; what is not valid keeps its place in averages.
    """

    scope: ClassVar[str] = "token"
    facts: ClassVar[frozenset[str]] = frozenset({"silent_at_zero_advantage"})
    # "tv" (probabilities) or "kl" (nats), both of "this token or another". Default: paper (tv).
    divergence: str = "tv"
    # How far a bad token may move; probability or nats. Default: released code (example, tv).
    clip_low: float = 0.15
    # How far a good token may move; probability or nats. Default: released code (example, tv).
    clip_high: float = 0.15
    # Largest ratio that counts. Default: released code (20 where unset; its config has 3).
    ratio_cap: float = 20.0

    def __post_init__(self) -> None:
        require_one_of(self, "divergence", ("tv", "kl"))
        require(self, "clip_low", "clip_high", "ratio_cap", low=0.0)

    def __call__(self, log_ratio_T: Tensor, logp_T: Tensor, advantage_T: Tensor) -> Result:
        log_ratio_T, now_T = log_ratio_T.detach(), logp_T.detach()
        old_T = now_T - log_ratio_T
        p_T, p_old_T = now_T.exp(), old_T.exp()
        if self.divergence == "tv":
            moved_T = (p_T - p_old_T).abs()
        else:
            others_T = (1 - p_old_T).clamp(min=0)
            log_others_T = ((others_T + TINY) / ((1 - p_T).clamp(min=0) + TINY)).log()
            moved_T = p_old_T * (old_T - now_T) + others_T * log_others_T
        good_T = advantage_T > 0
        high_T = good_T & (p_T > p_old_T) & (moved_T > self.clip_high)
        low_T = ~good_T & (p_T < p_old_T) & (moved_T > self.clip_low)
        weight_T = log_ratio_T.exp().clamp(max=self.ratio_cap)
        weight_T = torch.where(high_T | low_T, 0, weight_T)
        metrics = {
            "clip_ratio/low_mean": low_T.float(),
            "clip_ratio/high_mean": high_T.float(),
            "clip_ratio/region_mean": (low_T | high_T).float(),
        }
        return Result(weight_T * advantage_T * logp_T, metrics=metrics)
