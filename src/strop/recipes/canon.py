"""Advantages between and within the halves of a group that differ in entropy or length."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.method.schedule import CosineRestarts, Schedule
from strop.parts.advantage.baseline.compare_halves import CompareHalves
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.scale.weigh_signs import WeighSigns
from strop.recipes._base import check_choice
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.dr_grpo import dr_grpo
from strop.support.errors import UserError

NORM = "seq-mean-token-sum-norm"
# Parameters of the cosine schedules in the padded calls; the last two are of the first weight.
COSINE = ("total", "warmup", "cycles", "max", "min")
# Weight of the comparison between halves over the run: (mu, where mu comes from).
SCHEDULES: dict[str, tuple[Schedule | None, str]] = {
    "none": (None, "mu"),
    "first_intra": (None, "reward"),
    "first_inter": (None, "failure"),
    "cosine_first_intra": (CosineRestarts(0.4, 1.0, period=40, warmup=30, first=1.0), "mu"),
    "cosine_first_inter": (CosineRestarts(1.0, 0.4, period=40, warmup=30), "mu"),
}


def _cosine(params: dict[str, Any]) -> dict[str, Any]:
    """Builds `mu` from parameters of a cosine schedule, which are those of its first weight."""
    numbers = {name: params[name] for name in COSINE if name in params}
    if not numbers:
        return params
    found = {name: value for name, value in params.items() if name not in (*COSINE, "schedule")}
    schedule = params.get("schedule", "none")
    if not str(schedule).startswith("cosine_"):
        raise UserError(f"recipe canon: {', '.join(numbers)} are of the cosine schedules")
    if any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers.values()):
        raise UserError(f"recipe canon: {', '.join(numbers)} must be numbers")
    intra = schedule == "cosine_first_intra"
    usual = {"total": 150, "warmup": 30, "cycles": 3, "max": 0.6 if intra else 1.0,
             "min": 0.0 if intra else 0.4}  # fmt: skip
    total, warmup, cycles, high, low = {**usual, **numbers}.values()
    period = (total - warmup) / max(cycles, 1)
    if period < 1 or period != int(period) or warmup < 0 or warmup != int(warmup):
        raise UserError("recipe canon: total - warmup must be a multiple of cycles, in whole steps")
    ends = (1 - high, 1 - low) if intra else (high, low)
    found["mu"] = CosineRestarts(*ends, int(period), int(warmup), float(intra))
    return {"total_steps": int(total), **found}


@door(prepare=_cosine, prepared=COSINE)
@inherits(dr_grpo, without=("eps", "normalize_std", "singleton"), clip_high=0.28)
def canon(
    *,
    # What the halves differ in: "entropy", "length" or "random".
    metric: str = "entropy",
    # Weight of the comparison between halves; 1 - mu that within them.
    mu: float | Schedule = 1.0,
    # Preference for one half; below 1 that for high entropy, or for short answers.
    alpha: float = 1.0,
    # Head start of the half with the larger metric, in reward units.
    beta: float = 0.0,
    # How mu moves: "none", "first_intra", "first_inter" (by the step's mean reward), or
    # "cosine_first_intra", "cosine_first_inter" (cycles of 40 steps after 30).
    schedule: str = "none",
    # Tokens by which advantages are divided, for a loss that sums over tokens; 0: as dr_grpo.
    max_length: int = 0,
    **parent: Any,
) -> Algorithm:
    """Conditional Advantage Estimation for Reinforcement Learning in Large Reasoning Models.

    arXiv 2509.23962, eq. 5 and 8. Code: biuboomc/CANON. Parent: dr_grpo. Status: exact.

    Family: baselines.
    In short: group halves by entropy or length.
    Choose it when: entropy or length of an answer seems to matter, you do not know in which
    direction, and the rewards should decide.
    Equation: A_i = mu (R_i - mean of the other half) + (1 - mu) (R_i - mean of the own half),
    halves of the group by c_i, the mean entropy or the length of the answer.
    Differs from the parent: the means of the two halves replace the group's mean: the half that
    earns more is amplified, be it the high or the low one.
    Differs from the paper: a step has one update, not 16 (`num_minibatches=16`), which took more
    time. Ties of c_i are split in row order.
    Try: schedule, metric ("length" with alpha 0.9 shortens answers), mu (0.5 is dr_grpo).
    """
    check_choice("canon", SCHEDULES, schedule=schedule)
    moved, source = SCHEDULES[schedule]
    if schedule != "none" and mu != 1.0:
        raise UserError(f"recipe canon: schedule {schedule!r} moves mu: leave mu out, or schedule")
    halves = Use(CompareHalves(metric, moved or mu, source, alpha, beta))
    if not max_length:
        return dataclasses.replace(dr_grpo(**parent), advantage=(halves, Use(SpreadEvenly())))
    if max_length < 0 or parent["length"] or parent["aggregation"] != NORM:
        raise UserError(
            "recipe canon: max_length divides the advantages of a loss that sums over tokens; it "
            "is positive, and aggregation and length are left out"
        )
    share = Use(WeighSigns(1 / max_length, 1 / max_length))
    summed = dr_grpo(**{**parent, "aggregation": "seq-mean-token-sum"})
    return dataclasses.replace(summed, advantage=(halves, share, Use(SpreadEvenly())))
