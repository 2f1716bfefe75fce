"""Lower the reward of answers near the length limit, more so the closer they come."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.method.part import require
from strop.support.errors import UserError


@dataclass(frozen=True)
class PenaliseOverlongSoftly:
    """Over the last tokens before the limit the reward falls linearly.

        reward_i <- reward_i + min(-(length_i - (L_max - L_buf)) / L_buf * factor, 0)

    Reads: reward_B [B] float, length_B [B] int, scored_B [B] bool, max_length [] int where the
    field is 0.
    Writes: reward_B [B] float.
    Source: arXiv 2503.14476, eq. 13; code verl-project/verl-recipe dapo.
    Differs from the source: beyond L_max it keeps falling, as in the released code (the paper
    has -1 there); lengths count policy tokens only.
    Nearest part: drop_truncated_rollouts, which removes them instead.
    Edges: length up to L_max - L_buf -> reward unchanged; outcome_B stays as it was; unscored
    rewards stay as they are; L_buf above L_max -> UserError.
    """

    # L_buf, tokens; 0: an eighth of L_max. Default: released code (script: 512 of 4096).
    buffer: int = 0
    # Penalty at L_max, reward units. Default: paper (eq. 13).
    factor: float = 1.0
    # L_max, tokens; 0: the run's largest number of generated tokens. Default: ours.
    max_length: int = 0

    def __post_init__(self) -> None:
        require(self, "buffer", "max_length", low=0)
        require(self, "factor", low=0.0)

    def __call__(
        self,
        reward_B: Tensor,
        length_B: Tensor,
        scored_B: Tensor,
        max_length: Tensor | None = None,
    ) -> Tensor:
        given = self.max_length or max_length
        if given is None:
            raise UserError(
                "penalise_overlong_softly needs max_length: set its field, or give the run column"
            )
        limit = int(given)
        buffer = self.buffer or max(limit // 8, 1)
        if buffer > limit:
            raise UserError(
                f"penalise_overlong_softly: a buffer of {buffer} tokens is longer than the limit "
                f"of {limit}, so every answer would pay: lower buffer, or 0 for an eighth of it"
            )
        excess_B = (length_B - (limit - buffer)).to(reward_B.dtype)
        charged_B = reward_B + (-excess_B / buffer * self.factor).clamp(max=0)
        return torch.where(scored_B, charged_B, reward_B)
