"""Credit each token with how much likelier the reference, a teacher, finds it than the policy."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, present, require


@dataclass(frozen=True)
class CreditReferenceLikelihood:
    """Tokens that the reference would rather have written are praised, the others blamed.

        r_t = logp_ref_t - logp_old_t
        advantage_t = [adds] advantage_t + coef * mask_t * (sum_{j >= t} gamma^(j - t) r_j + b_t)
        b_t = KL(old || reference)_t where centred, else 0

    r is 0 on tokens of the environment, which count as steps of the discount. E[r_t] = -KL(old ||
    reference)_t over the token, so b_t takes the expected part out of the token's own reward; it
    depends only on what stands before the token and changes no expected gradient.

    Reads: logp_old_T, logp_ref_T [T] float, mask_T [T] bool, rollout_T [T] int, advantage_T [T]
    float where it adds, kl_ref_old_T [T] float where centred.
    Writes: advantage_T [T] float.
    Source: arXiv 2306.08543, eq. 3 (gamma 1); Lu and Thinking Machines Lab, "On-Policy
    Distillation" (2025; gamma 0); arXiv 2605.07865 (centred).
    Differs from the source: no.
    Nearest part: penalise_kl_to_reference, a loss term; with estimator k1 it has no gradient
    except through the ratio.
    Edges: masked tokens get 0.
    """

    # Reward units per nat. Default: released code (tinker-cookbook).
    coef: float = 1.0
    # Discount of a later token's reward: 0 the token's own alone, 1 all later ones. Default:
    # released code (tinker-cookbook).
    gamma: float = 0.0
    # Whether the expected reward of the token is subtracted (arXiv 2605.07865). Default:
    # ours (no, as in released code).
    centre: bool = False

    # Whether it is added to the advantage of the parts before, or replaces it. Default: ours (no).
    adds: bool = False

    def __post_init__(self) -> None:
        require(self, "coef", low=0.0)
        require(self, "gamma", low=0.0, high=1.0)

    @property
    def unread(self) -> frozenset[str]:
        """The columns that the fields make unnecessary."""
        needed = {"kl_ref_old_T": self.centre, "advantage_T": self.adds}
        return frozenset(name for name, is_read in needed.items() if not is_read)

    @property
    def any_of(self) -> tuple[tuple[str, ...], ...]:
        """The columns that are required where they are read."""
        unread = self.unread
        return tuple((name,) for name in ("kl_ref_old_T", "advantage_T") if name not in unread)

    def __call__(
        self,
        logp_old_T: Tensor,
        logp_ref_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        advantage_T: Tensor | None = None,
        kl_ref_old_T: Tensor | None = None,
    ) -> Result:
        reward_T = torch.where(mask_T, (logp_ref_T - logp_old_T).double(), 0)
        metrics = {"reference/credit_mean": segments.overall(reward_T, mask_T)}
        credit_T = segments.reward_to_go(reward_T, rollout_T, self.gamma)
        if self.centre:
            kl_ref_old_T = present(kl_ref_old_T)
            credit_T = credit_T + kl_ref_old_T
            metrics["reference/kl_mean"] = segments.overall(kl_ref_old_T, mask_T)
        base_T = 0 if advantage_T is None else advantage_T  # unread unless it adds
        credit_T = torch.where(mask_T, base_T + self.coef * credit_T, 0)
        return Result(credit_T.to(logp_old_T.dtype), metrics=metrics)
