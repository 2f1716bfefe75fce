"""Weigh each rollout by how much likelier the trainer finds it than the engine did, up to a cap."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop import segments
from strop.part import require

CLAMP_NATS = 20.0


@dataclass(frozen=True)
class TruncateEngineRatioPerSequence:
    """The engine's distance from the trainer is corrected once for a whole rollout.

        x_i = sum_{t in rollout i, mask_t} (logp_old_t - logp_behavior_t)
        correction_t = min(exp(clamp(x_{rollout of t}, -20, 20)), cap)

    Reads: logp_old_T [T] float, logp_behavior_T [T] float, mask_T [T] bool, rollout_T [T] int.
    Writes: correction_T [T] float.
    Source: code only: verl-project/verl:verl/trainer/ppo/rollout_corr_helper.py (sequence,
    truncate).
    Differs from the source: a token whose logp_behavior is void (NaN) adds 0 to the sum.
    Nearest part: truncate_engine_ratio; equal to it when every rollout has one policy token.
    Edges: all void -> 1; no policy token -> 1; no gradient.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"corrects_behavior_ratio"})
    # Largest weight, a ratio. Default: released code (verl; TRL has 3).
    cap: float = 2.0

    def __post_init__(self) -> None:
        require(self, "cap", low=0.0)

    def __call__(
        self, logp_old_T: Tensor, logp_behavior_T: Tensor, mask_T: Tensor, rollout_T: Tensor
    ) -> Tensor:
        num = int(rollout_T.max()) + 1 if rollout_T.numel() else 0
        known_T = mask_T & ~logp_behavior_T.isnan()
        sum_B = segments.total((logp_old_T - logp_behavior_T).detach(), rollout_T, num, known_T)
        return sum_B.clamp(-CLAMP_NATS, CLAMP_NATS).exp().clamp(max=self.cap)[rollout_T]
