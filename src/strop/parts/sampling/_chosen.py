"""Shared by the parts that rank the prompts and choose a step's from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strop.method.part import Draw, require


@dataclass(frozen=True)
class ChosenPrompts:
    """How many prompts a step draws, and rollouts of each.

    The state has `drawn`, the prompts of this step so far: a refill takes others if there are any.
    """

    # Prompts a step. Default: ours (the shipped model on a CPU).
    num_prompts: int = 32
    # Rollouts of each prompt. Default: ours (the shipped model on a CPU).
    num_rollouts: int = 16

    def __post_init__(self) -> None:
        require(self, "num_prompts", "num_rollouts", low=1)

    def init(self) -> dict[str, Any]:
        """Nothing drawn yet."""
        return {"drawn": ()}

    def chosen(
        self,
        ranked: Sequence[int],
        state: dict[str, Any],
        num_wanted: int | None,
        why: Callable[[int], str],
        usual: int = 0,
    ) -> tuple[tuple[Draw, ...], dict[str, Any]]:
        """Draws of the first prompts of `ranked`, which starts over if it is too short.

        A refill skips the prompts that this step has drawn, unless there are no others. usual:
        number of prompts if none is requested; 0: num_prompts.
        """
        drawn: tuple[int, ...] = () if num_wanted is None else state["drawn"]
        before = set(drawn)
        open_uids = [uid for uid in ranked if uid not in before] or list(ranked)
        wanted = (usual or self.num_prompts) if num_wanted is None else num_wanted
        taken = [open_uids[n % len(open_uids)] for n in range(wanted)]
        draws = tuple(Draw(uid, self.num_rollouts, why=why(uid)) for uid in taken)
        return draws, {**state, "drawn": (*drawn, *taken)}


def draw_by_weight(log_weight_N: Tensor, num: int, rng: torch.Generator) -> list[int]:
    """`num` rows without replacement, each next one with P ~ exp(log_weight) among those left.

    Takes the rows of the largest log_weight + Gumbel noise, so that no weight underflows.
    """
    uniform_N = torch.rand(log_weight_N.shape, generator=rng, dtype=torch.float64)
    noise_N = -(-uniform_N.clamp(1e-300, 1 - 1e-16).log()).log()
    return (log_weight_N + noise_N).argsort(descending=True, stable=True)[:num].tolist()
