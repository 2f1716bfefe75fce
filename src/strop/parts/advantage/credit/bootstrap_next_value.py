"""Expect an action to return its reward plus the value of the state after it."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch.columns import Column
from strop.method.part import require


@dataclass(frozen=True)
class BootstrapNextValue:
    """The critic's target for an action is one step of experience and its own value after that.

        return_k = r_k + gamma * next_k,   0 in place of next_k where the episode was done

    Reads: next_value_K [K] float (before the next turn, 0 where none came), reward_K [K] float,
    done_K [K] bool.   Writes: return_K [K] float.
    Source: arXiv 2402.19446, eq. 1; code YifeiZhou02/ArCHer.
    Differs from the source: no.
    Nearest part: estimate_turn_advantage; its returns equal it with lam 0 and nothing cut.
    Edges: values get no gradient.
    """

    writes: ClassVar[tuple[str, ...]] = ("return_K",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column("next_value_K", "float", "value before the turn after it; 0: none", "reward"),
    )
    # Discount of a turn. Default: released code (configurations; 0.9 in the signature).
    gamma: float = 0.95

    def __post_init__(self) -> None:
        require(self, "gamma", low=0.0, high=1.0)

    def __call__(self, next_value_K: Tensor, reward_K: Tensor, done_K: Tensor) -> Tensor:
        return reward_K + self.gamma * next_value_K.detach().masked_fill(done_K.bool(), 0)
