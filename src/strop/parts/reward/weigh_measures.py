"""Pay a rollout by several measurements that its environment took of the last action."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.method.part import Result
from strop.method.services import Log
from strop.support.errors import UserError


@dataclass(frozen=True)
class WeighMeasures:
    """Several judgements of an answer make one reward, each with a weight of its own.

        reward_i = sum_m weight_m * measure_m of the rollout's last turn that has measures

    Metrics: measures/NAME, the mean over the rollouts that have the measure.

    Reads: reward_B [B] float, rollout_uid_B [B] int; log (measures of Observation).
    Writes: reward_B [B] float.
    Source: arXiv 2505.12768 (composite reward).
    Differs from the source: the environment decides what is measured.
    Nearest part: score_with_verifiers, whose components are reward functions.
    Edges: no names -> reward_B is unchanged; a measure that a rollout lacks counts 0, and one that
    all of them lack is a UserError; outcome_B stays what the environment paid.
    """

    writes: ClassVar[tuple[str, ...]] = ("reward_B",)
    # Names of the measures. Default: ours (one of the source's five).
    names: tuple[str, ...] = ("execution",)
    # The weight of each. Default: paper (that one's).
    weights: tuple[float, ...] = (3.0,)

    def __post_init__(self) -> None:
        if not all(math.isfinite(weight) for weight in self.weights):
            raise UserError(f"weigh_measures.weights must be numbers, they are {self.weights}")

    def __call__(self, reward_B: Tensor, rollout_uid_B: Tensor, log: Log) -> Result:
        if len(self.names) != len(self.weights):
            raise UserError(
                f"weigh_measures: {len(self.names)} names and {len(self.weights)} weights: give "
                "each its own"
            )
        logged = log.logged.get("turns", {})
        uids = rollout_uid_B.tolist()
        measured = [last_measures(logged.get(uid, ())) for uid in uids]
        known = sorted({name for each in measured for name in each})
        for name in self.names:
            if name not in known and any(uid in logged for uid in uids):
                raise UserError(
                    f"weigh_measures: the environment does not measure {name}; it measures "
                    f"{', '.join(known) or 'nothing'}: give its observations measures of that name"
                )
        if not self.names:
            return Result(reward_B)
        total_B, metrics = torch.zeros_like(reward_B), dict[str, float]()
        for name, weight in zip(self.names, self.weights, strict=True):
            given = [each[name] for each in measured if name in each]
            metrics[f"measures/{name}"] = sum(given) / max(len(given), 1)
            total_B = total_B + weight * total_B.new_tensor([m.get(name, 0.0) for m in measured])
        return Result(total_B, metrics=metrics)


def last_measures(turns: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
    """The measures of the last turn that has some."""
    found = [turn["measures"] for turn in turns if "measures" in turn]
    return found[-1] if found else {}
