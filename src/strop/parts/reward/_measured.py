"""Finds numbers by name: a reward function's own, or a column that one logged for its rollouts."""

import torch
from torch import Tensor

from strop.method.services import Grading, Log
from strop.support.errors import UserError


def measured(
    who: str, name: str, reward_BM: Tensor, rollout_uid_B: Tensor, grading: Grading, log: Log
) -> Tensor:
    """The numbers [B] of that name; a missing one is NaN. Raises UserError if there are none."""
    if name in grading.reward_names:
        return reward_BM[:, grading.reward_names.index(name)]
    if name not in log.logged:
        known = ", ".join((*grading.reward_names, *log.logged))
        raise UserError(
            f"{who}: no reward function is called {name} or logs it; there is "
            f"{known}. Let the reward log it: log_extra({name!r}, values)"
        )
    found = (log.logged[name].get(uid) for uid in rollout_uid_B.tolist())
    values = [float("nan") if value is None else float(value) for value in found]
    return torch.tensor(values, dtype=reward_BM.dtype, device=reward_BM.device)
