"""Pairs of a preferred and a rejected answer to one prompt: shared by the preference losses."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from strop.batch import segments
from strop.method.charts import Curve, LineChart

LOSSES = ("sigmoid", "hinge")
CHARTS = (
    LineChart(
        "Pairs in the right order",
        "Share of pairs of which the preferred answer is the likelier one.",
        (Curve("preference/accuracy", "training pairs"),),
        section="Given answers",
        percent=True,
    ),
)
PANEL = ("preference/accuracy",)
SAME = 1e-5  # implicit rewards that differ by less are equal, up to rounding


class Pairs(NamedTuple):
    """Rows [N] of the two answers of every pair, and the learning tokens [B] of every answer."""

    chosen_N: Tensor
    rejected_N: Tensor
    count_B: Tensor


def pairs_of(
    preferred_B: Tensor, group_B: Tensor, num_groups: int, rollout_T: Tensor, learns_T: Tensor
) -> Pairs:
    """Every preferred answer with every rejected one of its prompt, both with learning tokens."""
    count_B = segments.count(rollout_T, group_B.shape[0], learns_T)
    row_N = segments.rows_where((preferred_B != 0) & (count_B > 0))
    one_M, other_M = (row_N[place] for place in segments.pairs(group_B[row_N], num_groups))
    is_pair_M = (preferred_B[one_M] > 0) & (preferred_B[other_M] < 0)
    return Pairs(one_M[is_pair_M], other_M[is_pair_M], count_B)


def gain(logit_N: Tensor, loss: str, label_smoothing: float) -> Tensor:
    """Minus the loss [N] of pairs by their logits: "sigmoid" or "hinge"."""
    if loss == "hinge":
        return -torch.relu(1 - logit_N)
    straight_N, flipped_N = logsigmoid(logit_N), logsigmoid(-logit_N)
    return (1 - label_smoothing) * straight_N + label_smoothing * flipped_N


def over_tokens(
    gain_N: Tensor,
    pairs: Pairs,
    group_B: Tensor,
    num_groups: int,
    rollout_T: Tensor,
    learns_T: Tensor,
) -> Tensor:
    """Token values [T] that add up, over each answer, to the mean gain of its prompt's pairs."""
    gain_P = segments.mean(gain_N, group_B[pairs.chosen_N], num_groups)
    gain_T = segments.at(gain_P[group_B] / pairs.count_B.clamp(min=1), rollout_T)
    return torch.where(learns_T, gain_T, 0)


def pair_metrics(logit_N: Tensor, better_N: Tensor, worse_N: Tensor) -> dict[str, Tensor]:
    """Metrics of the pairs: implicit rewards, their difference, the share in the right order."""
    if logit_N.numel() == 0:
        return {}
    numbers = {
        "preference/accuracy": better_N - worse_N > SAME,
        "preference/reward_chosen": better_N,
        "preference/reward_rejected": worse_N,
        "preference/margin": better_N - worse_N,
    }
    return {name: values_N.detach().double().mean().float() for name, values_N in numbers.items()}
