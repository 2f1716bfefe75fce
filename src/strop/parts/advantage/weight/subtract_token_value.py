"""Judge a token by how far its turn's advantage exceeds what was expected at that token."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SubtractTokenValue:
    """A critic's value of each token is the baseline of that token: less noise, the same mean.

        advantage_t <- advantage_t - value_t      without gradient

    Reads: advantage_T, value_T [T] float, mask_T [T] bool.   Writes: advantage_T [T] float.
    Source: arXiv 2402.19446, sec. 3.3; code YifeiZhou02/ArCHer (the trainer's actor_loss).
    Differs from the source: no.
    Nearest part: credit_value_steps, which takes differences of values and knows no advantage.
    Edges: value 0 -> unchanged; masked tokens get 0.
    """

    def __call__(self, advantage_T: Tensor, value_T: Tensor, mask_T: Tensor) -> Tensor:
        return torch.where(mask_T, advantage_T - value_T.detach(), 0)
