"""How far a policy follows recorded expert trajectories on its own."""

import numpy as np
from numpy.typing import ArrayLike


def semi_online_performance(
    match_K: ArrayLike, rollout_K: ArrayLike, total_B: ArrayLike
) -> dict[str, float]:
    """Progress and success of rollouts that end at their first wrong action.

        PG = mean_i s_i / t_i;  TSR = mean_i [s_i = t_i];  Score = (PG + TSR) / 2

    s_i: actions of rollout i before its first wrong one, t_i: the expert's actions. match_K [K]:
    whether each turn's action was the expert's; rollout_K [K]: the turn's rollout, turns in order;
    total_B [B]: t_i, at least 1. Rollouts that continued after a wrong action count up to it, but
    had seen patches: play with eps_patch=0. NaN without rollouts.

    Raises ValueError where a rollout has more turns than t_i. Source: arXiv 2509.11543 (SOP).
    """
    match, rollout = np.asarray(match_K, dtype=bool), np.asarray(rollout_K, dtype=np.int64)
    total = np.asarray(total_B, dtype=np.int64)
    if len(total) == 0:
        return dict.fromkeys(("PG", "TSR", "Score"), float("nan"))
    turns = np.bincount(rollout, minlength=len(total))
    if len(turns) > len(total) or (turns > total).any() or (total < 1).any():
        raise ValueError("each rollout needs as many expert actions as it has turns, or more")
    misses = np.cumsum(~match)
    before = np.concatenate([[0], misses])[np.searchsorted(rollout, np.arange(len(total)))]
    done = np.bincount(rollout, misses == before[rollout], minlength=len(total))
    progress, success = float(np.mean(done / total)), float(np.mean(done == total))
    return {"PG": progress, "TSR": success, "Score": (progress + success) / 2}
