"""Credit a transition with how the rollouts that share it went on average."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result


@dataclass(frozen=True)
class ShareOverTransitions:
    """A step that good and bad rollouts of a prompt have in common is neither good nor bad.

        advantage_k = mean of advantage_{rollout of j} over the group's turns j with the same
                      (state before, action, state after)

    Reads: advantage_B [B] float, group_K, rollout_K, state_K, action_K [K] int, scored_B [B] bool.
    Writes: advantage_K [K] float.
    Source: arXiv 2510.20022 (steps of a trajectory graph).
    Differs from the source: equality of keys is exact; a repeat inside one rollout counts again;
    nothing is normalised afterwards (all three inferred).
    Nearest part: centre_turns with key "state", which compares what such turns led to.
    Edges: a transition that occurs once keeps its rollout's advantage; the end of a rollout counts
    as a state of its own; turns of unscored rollouts -> 0 and outside the means.
    """

    writes: ClassVar[tuple[str, ...]] = ("advantage_K",)

    def __call__(
        self,
        advantage_B: Tensor,
        group_K: Tensor,
        rollout_K: Tensor,
        state_K: Tensor,
        action_K: Tensor,
        scored_B: Tensor,
    ) -> Result:
        counts_K = scored_B[rollout_K]
        ends_K = segments.ends(rollout_K)
        after_K = torch.where(ends_K, 0, state_K.roll(-1))
        key_K, num = segments.key_of(group_K, state_K, action_K, after_K, ends_K.long())
        mean_N = segments.mean(advantage_B[rollout_K], key_K, num, counts_K)
        shared_K = segments.count(key_K, num, counts_K)[key_K] > 1
        metrics = {"transitions/frac_shared": segments.overall(shared_K, counts_K)}
        return Result(torch.where(counts_K, mean_N[key_K], 0), metrics=metrics)
