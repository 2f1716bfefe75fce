"""Sampling more prompts until enough groups are live: shared by the parts that drop groups."""

import torch
from torch import Tensor

from strop.support.errors import UserError

START = {"rounds": 0, "target": 0}  # no round of the step has started


def refill(
    live_P: Tensor, group_B: Tensor, state: dict[str, int], num_prompts: int, max_rounds: int,
    strict: bool = False,
) -> tuple[Tensor, int | tuple[()], dict[str, int], dict[str, float]]:  # fmt: skip
    """The rollouts that stay [B] bool, how many more prompts are wanted, the state, and metrics.

    The target is num_prompts, or if that is 0 the number drawn first; what stays after the last
    round are the first live groups up to it. Raises UserError if strict and there are too few.
    """
    rounds = state["rounds"] + 1
    target = state["target"] or num_prompts or live_P.shape[0]
    num_live = int(live_P.sum())
    missing = max(target - num_live, 0)
    metrics = {
        "dynamic_sampling/rounds": float(rounds),
        "dynamic_sampling/uniform_fraction": 1 - num_live / max(live_P.shape[0], 1),
        "dynamic_sampling/missing_prompts": float(missing),
    }
    if missing and (rounds < max_rounds or max_rounds == 0):
        state = {"rounds": rounds, "target": target}
        return torch.ones_like(group_B, dtype=torch.bool), missing, state, metrics
    if missing and strict:
        raise UserError(
            f"drop_uniform_groups: after {rounds} rounds only {num_live} of {target} prompts have "
            "answers of different outcome; raise curation.max_rounds, take other prompts or set "
            "curation.strict=false"
        )
    keep_P = live_P & (live_P.cumsum(0) <= target)
    return keep_P[group_B], (), dict(START), metrics
