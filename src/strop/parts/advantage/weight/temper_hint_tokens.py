"""Learn from given beginnings gently, and never unlearn them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import HINT
from strop.method.part import Result


@dataclass(frozen=True)
class TemperHintTokens:
    """A hint token learns more, the closer its entropy is to that of the policy's continuation.

        advantage_t <- advantage_t * min(H_t, H_i) / max(H_t, H_i)   for hint tokens, A_t > 0
        advantage_t <- 0                                             for hint tokens, A_t < 0

    H_t is the token's entropy before the update, H_i its mean over the rollout's own tokens.

    Reads: advantage_T, entropy_old_T [T] float, origin_T [T] int, mask_T [T] bool, rollout_T [T]
    int, num_rollouts int.   Writes: advantage_T [T] float.
    Source: arXiv 2512.13095 (gradient modulation by consistency, and selective masking).
    Differs from the source: it says that tokens whose entropy is unlike the continuation's weigh
    less, not by how much: the quotient is ours.
    Nearest part: keep_origins, which drops tokens by where they came from.
    Edges: no hint -> unchanged; a rollout that is all hint, or both entropies 0 -> factor 1.
    """

    # Whether entropy tempers hint tokens. Default: paper (yes).
    by_entropy: bool = True
    # Whether hint tokens of bad rollouts are left alone. Default: paper (yes).
    never_unlearn: bool = True

    def __call__(
        self,
        advantage_T: Tensor,
        entropy_old_T: Tensor,
        origin_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        num_rollouts: int,
    ) -> Result:
        hint_T, own_T = mask_T & (origin_T == HINT), mask_T & (origin_T != HINT)
        factor_T = torch.ones_like(advantage_T)
        if self.by_entropy:
            entropy_T = torch.where(mask_T, entropy_old_T, 0).to(advantage_T.dtype)
            mean_T = segments.mean(entropy_T, rollout_T, num_rollouts, own_T)[rollout_T]
            top_T = torch.maximum(entropy_T, mean_T)
            known_T = (segments.count(rollout_T, num_rollouts, own_T) > 0)[rollout_T] & (top_T > 0)
            share_T = torch.minimum(entropy_T, mean_T) / torch.where(known_T, top_T, 1)
            factor_T = torch.where(known_T, share_T, 1)
        if self.never_unlearn:
            factor_T = torch.where(advantage_T < 0, 0, factor_T)
        metrics = {"hints/token_factor": segments.overall(factor_T, hint_T)}
        plain_T = torch.where(mask_T, advantage_T, 0)
        return Result(torch.where(hint_T, advantage_T * factor_T, plain_T), metrics=metrics)
