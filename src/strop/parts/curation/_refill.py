"""Sampling more prompts until enough groups are live: shared by the parts that drop groups."""

import torch
from torch import Tensor

from strop.method.part import Curated, Result
from strop.support.errors import UserError

START = {"rounds": 0, "target": 0}  # no round of the step has started


def refill(
    live_P: Tensor, group_B: Tensor, state: dict[str, int], num_prompts: int, max_rounds: int,
    reason: str, strict: bool = False,
) -> Result:  # fmt: skip
    """Ask for as many prompts as live groups are missing; in the last round keep the live ones.

    The target is num_prompts, or if that is 0 the number drawn first. Raises UserError if strict
    and too few are live after the last round.
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
        everything = Curated(torch.ones_like(group_B, dtype=torch.bool), reason, ask=missing)
        return Result(everything, {"rounds": rounds, "target": target}, metrics)
    if missing and strict:
        raise UserError(
            f"drop_uniform_groups: after {rounds} rounds only {num_live} of {target} prompts have "
            "answers of different outcome; raise curation.max_rounds, take other prompts or set "
            "curation.strict=false"
        )
    keep_P = live_P & (live_P.cumsum(0) <= target)
    return Result(Curated(keep_P[group_B], reason), dict(START), metrics)
