"""Centre the advantages of each player's tokens on the mean of their distinct values."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import require, require_one_of


@dataclass(frozen=True)
class CentreDistinctValues:
    """A token learns from how its advantage compares with the distinct ones of its player.

        advantage_t <- (advantage_t - mean_{v in V} v) / (std_{v in V} v + eps)

    V holds every value that the player's policy tokens of the step have, once however often it
    occurs: values that agree in single precision are one.

    Reads: advantage_T [T] float, rollout_T [T] int, mask_T [T] bool, scored_B [B] bool, player_B
    [B] int (without it there is one player).   Writes: advantage_T [T] float.
    Source: code only: thu-nics/MARSHAL:roll/utils/functionals.py @ 2db0222 (arXiv 2510.15414).
    Differs from the source: padding is not in V; any number of players.
    Nearest part: centre_turns by player, whose mean counts every turn.
    Edges: one distinct value -> 0; masked tokens and unscored rollouts -> 0.
    """

    # "none" or "unbiased" (n - 1). Default: released code (mode mean: none).
    scale: str = "none"
    # Added to the deviation; in reward units. Default: released code.
    eps: float = 1e-6

    def __post_init__(self) -> None:
        require_one_of(self, "scale", ("none", "unbiased"))
        require(self, "eps", low=0.0)

    def __call__(
        self,
        advantage_T: Tensor,
        rollout_T: Tensor,
        mask_T: Tensor,
        scored_B: Tensor,
        player_B: Tensor | None = None,
    ) -> Tensor:
        counts_T = mask_T & segments.at(scored_B, rollout_T)
        players_B = torch.zeros_like(scored_B, dtype=torch.long) if player_B is None else player_B
        key_B, num = segments.key_of(players_B)
        row_N = segments.rows_where(counts_T)
        rollout_N, own_N = segments.at(rollout_T, row_N), segments.at(advantage_T, row_N)
        player_N, value_N = segments.at(key_B, rollout_N), own_N.float()
        value_V, owner_V = segments.distinct(value_N, player_N)
        value_V = value_V.double()
        mean_B = segments.mean(value_V, owner_V, num)[key_B]
        centred_N = own_N - segments.at(mean_B, rollout_N)
        if self.scale != "none":
            scale_B = (segments.std(value_V, owner_V, num) + self.eps)[key_B]
            centred_N = centred_N / segments.at(scale_B, rollout_N)
        several_B = (segments.count(owner_V, num) > 1)[key_B]
        centred_N = torch.where(segments.at(several_B, rollout_N), centred_N, 0)
        zeros_T = torch.zeros_like(advantage_T)
        return zeros_T.index_copy_(0, row_N, centred_N.to(advantage_T.dtype))
