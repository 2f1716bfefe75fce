"""Windows of high entropy in answers, and the worth of their number by a prompt's difficulty."""

import torch
from torch import Tensor

from strop.batch import segments

EASY, MEDIUM, HARD = 0, 1, 2
# By difficulty, of the released code: share of the target that is tolerated, where the cost turns
# from a square to a line (windows), temperature of the sigmoid (windows), scale of the cap.
TOLERANCE, BEND, TEMPERATURE, CAP = (
    (0.15, 0.25, 0.35),
    (2.0, 3.0, 4.0),
    (2.0, 2.5, 3.0),
    (1, 1, 1.2),
)
WRONG = (0.6, 0.8, 1.0)  # scale of a wrong answer's bonus
EPS = 1e-8


def word_of(text: str) -> str:
    """A token's text without the marks and spaces at its ends, in lower case."""
    return text.lstrip("\u2581\u0120").strip().lower()


def window_means(entropy_N: Tensor, rollout_N: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Mean entropy [N] of `width` tokens from each on, and whether the rollout has that many."""
    num = entropy_N.shape[0]
    until = entropy_N.new_zeros(num + 1, dtype=torch.float64)
    torch.cumsum(entropy_N, 0, dtype=torch.float64, out=until[1:])
    sum_N = until[:num].neg()
    inside = max(num - width + 1, 0)  # the other windows would end after the last token
    sum_N[:inside] += until[num + 1 - inside :]
    sum_N[inside:] += until[-1]
    whole_N = torch.zeros_like(rollout_N, dtype=torch.bool)
    if num >= width:
        whole_N[: num - width + 1] = rollout_N[width - 1 :] == rollout_N[: num - width + 1]
    return sum_N.div_(width).to(entropy_N.dtype), whole_N


def means_after(entropy_N: Tensor, rollout_N: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Mean entropy [N] of the `width` tokens after each, and whether the rollout has that many."""
    mean_N, whole_N = window_means(entropy_N, rollout_N, width)
    same_N = rollout_N.roll(-1) == rollout_N
    same_N[-1:] = False
    return mean_N.roll(-1), whole_N.roll(-1) & same_N


def whole_or_usual(
    mean_N: Tensor, whole_N: Tensor, entropy_N: Tensor, rollout_N: Tensor, num: int
) -> Tensor:
    """Window means [N]; a token without room for a window gets the mean of its rollout's windows.

    In a rollout without any window it gets the entropy of the first token.
    """
    usual_B = segments.mean(mean_N, rollout_N, num, whole_N)
    some_B = segments.count(rollout_N, num, whole_N) > 0
    first_B = segments.first(rollout_N, num).clamp(max=max(entropy_N.shape[0] - 1, 0))
    first_N = entropy_N[first_B[rollout_N]]
    other_N = torch.where(some_B[rollout_N], usual_B[rollout_N], first_N)
    return torch.where(whole_N, mean_N, other_N)


def covered(begins_N: Tensor, width: int) -> Tensor:
    """Tokens [N] inside a window that begins at a marked token."""
    inside_N = begins_N.clone()
    for shift in range(1, width):
        inside_N[shift:] |= begins_N[: begins_N.shape[0] - shift]
    return inside_N


def difficulty(right_B: Tensor, group_B: Tensor, num_groups: int, scored_B: Tensor) -> Tensor:
    """EASY if 2/3 or more of a group's scored rollouts are right, MEDIUM from 1/3, else HARD."""
    share_P = segments.mean(right_B.double(), group_B, num_groups, scored_B)
    return ((share_P < 2 / 3).long() + (share_P < 1 / 3).long())[group_B]


def paper_cost(excess_B: Tensor, difficulty_B: Tensor) -> Tensor:
    """g: relu(D) where easy, |D| where medium, relu(-D) where hard."""
    costs = torch.stack([excess_B.relu(), excess_B.abs(), (-excess_B).relu()])
    return costs.gather(0, difficulty_B[None])[0]


def code_bonus(excess_B: Tensor, target_B: Tensor, difficulty_B: Tensor, right_B: Tensor,
               weight: float | Tensor) -> Tensor:  # fmt: skip
    """The bonus that the released code adds to the reward; `weight` is each rollout's alpha."""

    def of(table: tuple[float, ...]) -> Tensor:
        return torch.tensor(table, dtype=excess_B.dtype, device=excess_B.device)[difficulty_B]

    margin_B = (of(TOLERANCE) * target_B.clamp(min=1)).clamp(min=1)
    cap_B, bend_B = weight * of(CAP), of(BEND)

    def cost(x_B: Tensor) -> Tensor:
        bent_B = torch.where(x_B <= bend_B, x_B**2 / (2 * bend_B), x_B - bend_B / 2)
        return cap_B * bent_B / (margin_B + bend_B)

    def soft(x_B: Tensor) -> Tensor:
        return torch.sigmoid(x_B / of(TEMPERATURE))

    over_B = (excess_B - margin_B).relu()
    away_B = (excess_B.abs() - margin_B).relu()
    short_B = (-excess_B - margin_B).relu()
    few_B = -torch.minimum(cap_B, 0.5 * cost(short_B))
    hard_B = torch.where(excess_B >= -margin_B, soft(excess_B + margin_B) * cap_B, few_B)
    missed_B = torch.where(difficulty_B == EASY, over_B, away_B)
    good_B = torch.where(difficulty_B == HARD, hard_B, -torch.minimum(cap_B, cost(missed_B)))
    wrong_B = soft(over_B) * cap_B * of(WRONG)
    return torch.where(right_B, good_B, wrong_B)
