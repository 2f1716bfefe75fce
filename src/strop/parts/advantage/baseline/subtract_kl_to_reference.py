"""Take the price of leaving the reference policy off each rollout's reward."""

from dataclasses import dataclass

from torch import Tensor

from strop.batch import segments
from strop.method.part import require


@dataclass(frozen=True)
class SubtractKlToReference:
    """A rollout that the reference would hardly have written counts as a worse rollout.

        advantage_i <- advantage_i - coef * sum_{t in i, mask_t} (logp_old_t - logp_ref_t)

    Reads: advantage_B [B] float, logp_old_T [T] float, logp_ref_T [T] float, mask_T [T] bool,
    rollout_T [T] int.   Writes: advantage_B [B] float.
    Source: arXiv 2402.14740 (the reward with its KL term); code huggingface/trl
    (rloo_trainer.py).
    Differs from the source: no.
    Nearest part: penalise_kl_to_reference with estimator k1, a loss term instead of a reward.
    Edges: no policy token -> unchanged; it stands before the baseline, which spreads the price.
    """

    # Reward units per nat. Default: released code (TRL).
    coef: float = 0.05

    def __post_init__(self) -> None:
        require(self, "coef", low=0.0)

    def __call__(
        self,
        advantage_B: Tensor,
        logp_old_T: Tensor,
        logp_ref_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
    ) -> Tensor:
        num = advantage_B.shape[0]
        kl_B = segments.total(logp_old_T - logp_ref_T, rollout_T, num, mask_T)
        return advantage_B - self.coef * kl_B.to(advantage_B.dtype)
