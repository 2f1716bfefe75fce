"""Rank the answers that were cut off if no answer of the prompt is right."""

from dataclasses import dataclass

from torch import Tensor

from strop.batch import segments
from strop.method.part import require


@dataclass(frozen=True)
class RankTruncatedByEntropy:
    """Among failures, a cut-off answer that is undecided at few places and sure elsewhere wins.

        peak_i = mean of the max(1, floor(peak_share T_i)) highest entropies,  all_i = mean of all
        i beats j: peak_i > peak_j and all_i < all_j
        reward_i <- best (1 - k_i / (N - 1)),  k_i = rank by the number beaten, 0 for the most

    N: truncated rollouts of the prompt; ties share the mean of their ranks. It applies only if
    every scored rollout of the prompt has outcome < success. Entropies are the engine's.

    Reads: reward_B, outcome_B [B] float, group_B [B] int, num_groups int, scored_B, truncated_B [B]
    bool, entropy_behavior_T [T] float, rollout_T [T] int, mask_T [T] bool.
    Writes: reward_B [B] float.
    Source: arXiv 2601.19620, sec. 3.2 (structural entropy ranking).
    Differs from the source: the ranks of ties, peak_share and best are ours (not stated there).
    Nearest part: none.
    Edges: one truncated rollout -> best; none, or a right answer -> reward stays; outcome stays.
    """

    # Share of an answer's tokens that are its peak. Default: ours (not stated).
    peak_share: float = 0.2
    # Reward of the first, reward units. Default: ours (not stated).
    best: float = 0.5
    # Outcome from which an answer is right. Default: ours (1, of rewards in {0, 1}).
    success: float = 1.0

    def __post_init__(self) -> None:
        require(self, "peak_share", low=0.0, high=1.0)
        require(self, "best", "success")

    def __call__(
        self, reward_B: Tensor, outcome_B: Tensor, group_B: Tensor, scored_B: Tensor,
        truncated_B: Tensor, entropy_behavior_T: Tensor, rollout_T: Tensor, mask_T: Tensor,
        num_groups: int,
    ) -> Tensor:  # fmt: skip
        num = reward_B.shape[0]
        right_P = segments.count(group_B, num_groups, scored_B & (outcome_B >= self.success)) > 0
        ranked_B = scored_B & truncated_B & ~right_P[group_B]
        row_N = ranked_B.nonzero().squeeze(1)
        tokens, where_T = (rollout_T, num), mask_T & ranked_B[rollout_T]
        share = self.peak_share
        peak_N = -segments.mean_of_lowest(-entropy_behavior_T, *tokens, share, where_T)[row_N]
        all_N = segments.mean(entropy_behavior_T, *tokens, where_T)[row_N]
        one, other = segments.pairs(group_B[row_N], num_groups)
        beats = (peak_N[one] > peak_N[other]) & (all_N[one] < all_N[other])
        beaten_N = segments.count(one, row_N.shape[0], beats)
        more_N, equal_N, peers_N = (
            segments.count(one, row_N.shape[0], where)
            for where in (beaten_N[other] > beaten_N[one], beaten_N[other] == beaten_N[one], None)
        )
        rank_N = more_N + (equal_N - 1) / 2
        given_N = self.best * (1 - rank_N / (peers_N - 1).clamp(min=1))
        result_B = reward_B.clone()
        result_B[row_N] = given_N.to(reward_B.dtype)
        return result_B
