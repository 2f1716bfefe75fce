"""Learn most from prompts whose longest right answer is longer than the usual wrong one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require, require_one_of
from strop.support.errors import UserError

FORMS = ("text", "vision")


@dataclass(frozen=True)
class FavourGroupsWithLongSuccesses:
    """Prompts where long reasoning pays now weigh more than the others.

        advantage_i <- advantage_i * (weights[0] if the group is worthwhile else weights[1])
        worthwhile: max length of right ones > mean length of wrong ones, success <= max_success

    Right: reward > correct_threshold. With max_length, wrong ones of that length or more are left
    out of the mean. source_form "text": no right one -> not worthwhile, no wrong one -> worthwhile;
    "vision": the other way round.

    Reads: advantage_B, reward_B [B] float, length_B, group_B [B] int, num_groups int, scored_B [B]
    bool.   Writes: advantage_B [B] float.
    Source: arXiv 2602.10019; code ShadeCloak/ADORA (form "text" in LLM, "vision" in ADORA_VL).
    Differs from the source: no; max_success is the paper's second criterion, not in the code.
    Nearest part: scale_by_signal_share, one factor for the whole step.
    Edges: no right and no wrong answer -> as for no right one; unscored rollouts -> 0, not counted.
    """

    # Factors of worthwhile groups and of the others. Default: released code (1 and 0.1).
    weights: tuple[float, float] = (1.0, 0.1)
    # Reward above which an answer is right. Default: released code (vision; text 1.01 of 3).
    correct_threshold: float = 0.5
    # Length from which wrong answers are left out, tokens; 0: none. Default: ours (none; the code
    # has 4054, in its vision folder 4094, of 4096).
    max_length: int = 0
    # Largest share of right answers of a worthwhile group. Default: released code (any).
    max_success: float = 1.0
    # How a group of only one kind counts. Default: released code ("text").
    source_form: str = "text"

    def __post_init__(self) -> None:
        require(self, "correct_threshold")
        require(self, "max_length", low=0)
        require(self, "max_success", low=0.0, high=1.0)
        require_one_of(self, "source_form", FORMS)
        if len(self.weights) != 2 or not all(weight >= 0 for weight in self.weights):
            raise UserError(
                "favour_groups_with_long_successes.weights must be two numbers of 0 or more: "
                f"{self.weights}"
            )

    def __call__(
        self,
        advantage_B: Tensor,
        reward_B: Tensor,
        length_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        num_groups: int,
    ) -> Result:
        right_B = scored_B & (reward_B > self.correct_threshold)
        wrong_B = scored_B & ~right_B
        if self.max_length:
            wrong_B = wrong_B & (length_B < self.max_length)
        num_right_P = segments.count(group_B, num_groups, right_B)
        num_wrong_P = segments.count(group_B, num_groups, wrong_B)
        longest_P = segments.extreme(length_B.double(), group_B, num_groups, right_B)
        usual_P = segments.mean(length_B.double(), group_B, num_groups, wrong_B)
        worthwhile_P = longest_P > usual_P
        if self.source_form == "text":
            worthwhile_P = (num_right_P > 0) & (worthwhile_P | (num_wrong_P == 0))
        else:
            worthwhile_P = (num_right_P == 0) | (worthwhile_P & (num_wrong_P > 0))
        size_P = segments.count(group_B, num_groups, scored_B)
        most_P = self.max_success * size_P.clamp(min=1).double() + 1e-9
        worthwhile_P = worthwhile_P & (num_right_P <= most_P)
        metrics = {"groups/frac_worthwhile": segments.overall(worthwhile_P, size_P > 0)}
        high, low = self.weights
        weighted_B = advantage_B * torch.where(worthwhile_P, high, low)[group_B]
        weighted_B = torch.where(scored_B, weighted_B, 0).to(advantage_B.dtype)
        return Result(weighted_B, metrics=metrics)
