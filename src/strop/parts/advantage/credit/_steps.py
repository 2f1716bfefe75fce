"""Answers cut into steps, each from one place with a known value to the next."""

from typing import NamedTuple

import torch
from torch import Tensor

from strop.batch import segments


class Steps(NamedTuple):
    """The steps of all rollouts, those of a rollout adjacent and in order.

    row_N: the token at which a step begins; rollout_N: its rollout. step_T: the step of a token,
    valid where inside_T: tokens before the first known value of their rollout are in no step.
    """

    row_N: Tensor
    rollout_N: Tensor
    step_T: Tensor
    inside_T: Tensor

    def after(self, before_N: Tensor, final_N: Tensor) -> Tensor:
        """The value [N] after each step: the next step's first one, or the rollout's final one."""
        return torch.where(segments.ends(self.rollout_N), final_N, before_N.roll(-1))

    def spread(self, values_N: Tensor) -> Tensor:
        """The value of each token's step [T], 0 outside."""
        return torch.where(self.inside_T, segments.at(values_N, self.step_T), 0)


def rise_metrics(steps: Steps | None, rise_N: Tensor, scored_B: Tensor) -> dict[str, float]:
    """Steps per scored rollout, and how far a step moves the value: the mean size of `rise_N`."""
    num = 0 if steps is None else steps.row_N.shape[0]
    return {
        "steps/per_rollout": num / max(int(scored_B.sum()), 1),
        "steps/change_abs_mean": segments.overall(rise_N.abs()),
    }


def steps_of(
    prefix_value_T: Tensor, scored_B: Tensor, rollout_T: Tensor, mask_T: Tensor,
    cut_T: Tensor | None,
) -> Steps | None:  # fmt: skip
    """The steps of scored rollouts, or None where there is no known value.

    A value is known where it is not NaN, and only at the tokens of `cut_T` where that is given.
    """
    learns_T = mask_T & segments.at(scored_B, rollout_T)
    known_T = learns_T & ~prefix_value_T.isnan()
    known_T = known_T if cut_T is None else known_T & cut_T
    row_N = segments.rows_where(known_T)
    if row_N.shape[0] == 0:
        return None
    rollout_N = segments.at(rollout_T, row_N)
    step_T = known_T.cumsum(0).sub_(1).clamp_(min=0)
    inside_T = learns_T & (segments.at(rollout_N, step_T) == rollout_T)
    inside_T[: int(row_N[0])] = False  # no step begins before them
    return Steps(row_N, rollout_N, step_T, inside_T)
