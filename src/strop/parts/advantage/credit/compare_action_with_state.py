"""Credit an action with how much more it is worth than the state that it was taken in."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.columns import Column


@dataclass(frozen=True)
class CompareActionWithState:
    """An action learns from what two critics agree that it adds.

        advantage_k = min(Q_1, Q_2) - min(V_1, V_2)      of turn k, without gradient

    Reads: value_after_K, value_after_second_K (Q), value_K, value_second_K (V) [K] float.
    Writes: advantage_K [K] float.
    Source: arXiv 2402.19446; code YifeiZhou02/ArCHer (the trainer's actor step).
    Differs from the source: no.
    Nearest part: credit_value_steps, which knows one value of each state.
    Edges: none.
    """

    writes: ClassVar[tuple[str, ...]] = ("advantage_K",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column("value_second_K", "float", "value before the turn of a second critic", "reward"),
        Column("value_after_K", "float", "value of the turn's action", "reward"),
        Column("value_after_second_K", "float", "the same of a second critic", "reward"),
    )

    def __call__(
        self,
        value_after_K: Tensor,
        value_after_second_K: Tensor,
        value_K: Tensor,
        value_second_K: Tensor,
    ) -> Tensor:
        action_K = torch.minimum(value_after_K, value_after_second_K)
        return (action_K - torch.minimum(value_K, value_second_K)).detach()
