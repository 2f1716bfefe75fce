"""Sampling more prompts until enough groups are live: shared by the parts that drop groups."""

from typing import NamedTuple

from torch import Tensor


class Round(NamedTuple):
    """One round of a refill: prompts still missing, whether to continue, and its metrics."""

    missing: int
    again: bool
    rounds: int
    target: int
    metrics: dict[str, float]


def one_round(live_P: Tensor, state: dict[str, int], num_prompts: int, max_rounds: int) -> Round:
    """Count the live groups; the target is num_prompts, or if that is 0 the number drawn first."""
    rounds = state["rounds"] + 1
    target = state["target"] or num_prompts or live_P.shape[0]
    num_live = int(live_P.sum())
    missing = max(target - num_live, 0)
    metrics = {
        "dynamic_sampling/rounds": float(rounds),
        "dynamic_sampling/uniform_fraction": 1 - num_live / max(live_P.shape[0], 1),
        "dynamic_sampling/missing_prompts": float(missing),
    }
    again = missing > 0 and (rounds < max_rounds or max_rounds == 0)
    return Round(missing, again, rounds, target, metrics)


def first_live(live_P: Tensor, target: int) -> Tensor:
    """The first `target` live groups [P] bool."""
    return live_P & (live_P.cumsum(0) <= target)
