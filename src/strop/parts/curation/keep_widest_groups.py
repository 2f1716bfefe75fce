"""Train on the prompts whose answers differ most in reward."""

from dataclasses import dataclass

from torch import Tensor

from strop.batch import segments
from strop.method.part import Curated, Result, require


@dataclass(frozen=True)
class KeepWidestGroups:
    """Only those of the step's prompts stay on which the policy's answers disagree most.

        spread_P = unbiased deviation of reward_B over the group's scored rollouts
        kept: the max(int(share * groups), 1) groups of the largest spread

    Metrics: widest/spread (mean over all groups), /spread_kept.

    Reads: reward_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool.
    Writes: rows to keep.
    Source: arXiv 2509.22601; code TencentYoutuResearch/SPEAR (rollout_filter_type std).
    Differs from the source: no.
    Nearest part: drop_uniform_groups, which samples others in place of those it drops.
    Edges: fewer than two scored rollouts -> spread 0; equal spreads -> the first groups stay.
    """

    # Share of the groups that stays. Default: released code (0.75).
    share: float = 0.75

    def __post_init__(self) -> None:
        require(self, "share", low=0.0, high=1.0)

    def __call__(
        self, reward_B: Tensor, group_B: Tensor, scored_B: Tensor, num_groups: int
    ) -> Result:
        spread_P = segments.std(reward_B.double(), group_B, num_groups, scored_B)
        kept_P = segments.largest(spread_P, min(max(int(self.share * num_groups), 1), num_groups))
        metrics = {
            "widest/spread": segments.overall(spread_P),
            "widest/spread_kept": segments.overall(spread_P, kept_P),
        }
        return Result(Curated(kept_P[group_B], "narrow_group"), metrics=metrics)
