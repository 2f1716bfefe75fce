"""Let every turn of the update count once, by the sum over its tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments


@dataclass(frozen=True)
class AverageOverTurns:
    """The likelihood of whole actions is learnt: an action's tokens add up, actions are averaged.

        share_t = denominator_t / turns with a token that counts

    Reads: denominator_T [T] bool, turn_T [T] int, num_turns int.   Writes: share_T [T] float.
    Source: arXiv 2406.11896 (mean of log pi(a | s) over steps).
    Differs from the source: no.
    Nearest part: average_per_turn, in which the tokens of a turn are averaged too.
    Edges: no token -> all shares 0.
    """

    def __call__(self, denominator_T: Tensor, turn_T: Tensor, num_turns: int) -> Tensor:
        turns = (segments.count(turn_T, num_turns, denominator_T) > 0).sum().clamp(min=1)
        return torch.where(denominator_T, 1.0 / turns.double(), 0.0)
