"""Teach the critic to predict success."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import logsigmoid


@dataclass(frozen=True)
class ClassifySuccess:
    """The critic's output is the log-odds of success, and learns from how the episode ended.

        objective_t = G_t log sigmoid(V_t) + (1 - G_t) log sigmoid(-V_t)

    Reads: value_T [T] float (current; log-odds), return_T [T] float (0 or 1).
    Writes: objective_T [T] float (nats).
    Source: arXiv 2406.11896 (cross-entropy of both critics); code DigiRL-agent/digirl.
    Differs from the source: one logit, where the source has two classes.
    Nearest part: regress_value, whose value is the return itself.
    Edges: returns get no gradient; a target between 0 and 1 -> the mean of both losses.
    """

    scope: ClassVar[str] = "token"

    def __call__(self, value_T: Tensor, return_T: Tensor) -> Tensor:
        wanted_T = return_T.detach()
        return wanted_T * logsigmoid(value_T) + (1 - wanted_T) * logsigmoid(-value_T)
