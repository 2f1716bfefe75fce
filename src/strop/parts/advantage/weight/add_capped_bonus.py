"""Add a bonus to a token's advantage that never turns its sign."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class AddCappedBonus:
    """Tokens with a bonus are praised more and blamed less, at most by a share of what they had.

        advantage_t <- advantage_t + min(max(scale * bonus_t, 0), |advantage_t| / cap)

    With cap above 1 no advantage changes its sign. `of_logp`: the column is a log-probability x,
    and the bonus -x exp(x).

    Reads: advantage_T [T] float, mask_T [T] bool, bonus_T [T] float, which is entropy_old_T unless
    the recipe names another column.   Writes: advantage_T [T] float.
    Source: arXiv 2506.14758 (entropy as a bonus); arXiv 2512.18215; of_logp code only: ruiiu/MSSR.
    Differs from the source: no.
    Nearest part: modulate_turns_by_entropy.
    Edges: advantage 0 -> 0; scale 0, or cap infinite -> unchanged; masked tokens get 0.
    """

    columns: ClassVar[dict[str, str]] = {"bonus_T": "entropy_old_T"}
    # Factor on the bonus. Default: paper (0.4).
    scale: float = 0.4
    # The bonus is at most the advantage's size divided by this. Default: paper (2).
    cap: float = 2.0
    # Whether the column is a log-probability. Default: paper (no: the whole entropy).
    of_logp: bool = False

    def __post_init__(self) -> None:
        require(self, "scale", low=0.0)
        require(self, "cap", low=1e-12)

    def __call__(self, advantage_T: Tensor, bonus_T: Tensor, mask_T: Tensor) -> Result:
        bonus_T = torch.where(mask_T, bonus_T, 0).to(advantage_T.dtype)
        bonus_T = -bonus_T * bonus_T.exp() if self.of_logp else bonus_T
        whole_T, most_T = (self.scale * bonus_T).clamp(min=0), advantage_T.abs() / self.cap
        bonus_T = torch.minimum(whole_T, most_T)
        metrics = {
            "bonus/mean": segments.overall(bonus_T, mask_T),
            "bonus/frac_capped": segments.overall(whole_T > most_T, mask_T),
        }
        return Result(torch.where(mask_T, advantage_T + bonus_T, 0), metrics=metrics)
