"""Centre each rollout's reward on the mean of its group."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require, require_one_of
from strop.parts.advantage.baseline._shift import shift_of


@dataclass(frozen=True)
class SubtractGroupMean:
    """A rollout learns from how much better it did than the average rollout of its prompt.

        advantage_i = reward_i - (sum_{j in group} reward_j + n best) / (G + n),  n = num_imagined
        leave_one_out: the sum is over j != i, and G - 1 stands for G

    With imagined rollouts of the best reward an answer learns that it fell short of it even where
    all answers are wrong; a group's advantages then add up to less than 0, so nothing after this
    part may centre them again.

    Reads: advantage_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: arXiv 2402.03300, sec. 4.1.2 (the numerator of the outcome advantage); leave_one_out
    arXiv 2402.14740 (RLOO); num_imagined arXiv 2509.18851, code nangongrui-ngr/NGRPO.
    Differs from the source: no. leave_one_out multiplies a group's advantages by
    G / (G - 1), which is not one factor for groups of unlike sizes.
    Nearest part: subtract_group_median; equal to it in groups whose mean is their median.
    Edges: group of one -> by `singleton`; the only scored rollout of several -> 0; all equal (and,
    with imagined ones, equal to best) -> exactly 0; unscored rollouts -> 0 and outside the mean.
    """

    # What a group of one gets: "raw" (its reward) or "zero". Default: released code (verl).
    singleton: str = "raw"
    # Whether a rollout is left out of its own mean. Default: paper (no).
    leave_one_out: bool = False
    # Imagined rollouts of each group. Default: paper (none).
    num_imagined: int = 0
    # Their reward, the largest there is. Default: paper (1, of rewards in {0, 1}).
    best: float = 1.0

    def __post_init__(self) -> None:
        require_one_of(self, "singleton", ("raw", "zero"))
        require(self, "num_imagined", low=0)
        require(self, "best")

    @property
    def facts(self) -> frozenset[str]:
        """Imagined rollouts move the mean, even where all real rewards of a group are equal."""
        moved = {"advantage_mean_is_not_zero", "learns_from_uniform_groups"}
        return frozenset(moved) if self.num_imagined else frozenset()

    @property
    def unlogged(self) -> frozenset[str]:
        """The baseline's distance from the group's mean, where it is that mean."""
        plain = not self.leave_one_out and not self.num_imagined
        return frozenset({"advantage/baseline_shift"} if plain else ())

    def __call__(
        self, advantage_B: Tensor, group_B: Tensor, scored_B: Tensor, num_groups: int
    ) -> Result:
        members = (advantage_B, group_B, num_groups, scored_B)
        size_P = segments.count(group_B, num_groups, scored_B)
        if self.leave_one_out:
            centred_B = advantage_B - segments.leave_one_out_mean(*members)
        else:
            centred_B = segments.centred(*members)
        if self.num_imagined:
            # m / (m + n) (reward - members' mean) + n / (m + n) (reward - best): 0 where all agree
            counted_P = size_P - int(self.leave_one_out)
            share_P = counted_P.to(advantage_B.dtype) / (counted_P + self.num_imagined).clamp(min=1)
            share_B = share_P[group_B]
            centred_B = share_B * centred_B + (1 - share_B) * (advantage_B - self.best)
        alone_B = (size_P == 1)[group_B]
        raw_B = torch.zeros_like(advantage_B)
        if self.singleton == "raw":  # not where others of the group have no score
            single_B = (segments.count(group_B, num_groups) == 1)[group_B]
            raw_B = torch.where(single_B, advantage_B, raw_B)
        centred_B = torch.where(scored_B, torch.where(alone_B, raw_B, centred_B), 0)
        return Result(centred_B, metrics={} if self.unlogged else shift_of(centred_B, *members))
