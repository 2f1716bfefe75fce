"""Ask for few open choices on easy prompts and for many on hard ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop import segments
from strop.columns import Column
from strop.part import Result, require, require_one_of
from strop.reward import _open_windows as windows

KEEP = 0.9  # of a target at each step
KEEP_LEVEL = 0.99  # of the released code's threshold


@dataclass(frozen=True)
class RewardOpenWindows:
    """The number of high-entropy windows moves the reward, by the prompt's difficulty d.

        N_i = windows of `width` tokens whose mean entropy exceeds tau;  D = N - target(d)
        paper: reward_i - 1[wrong] lambda_d g(D), lambda_d = max(0, (E N - target) / (Var N + eps)),
        g = relu(D) easy, |D| medium, relu(-D) hard; tau = mean of the rollouts' 95% quantiles
        code: + a capped bonus (`_open_windows`), tau = running median of those of window means

    d: group accuracy from 2/3 easy (0), from 1/3 medium (1), else hard (2). target(d) is the
    running mean of N over earlier steps. kl_weight: paper: relax in such windows; code: on easy
    wrong answers; else 1.

    Reads: entropy_behavior_T [T], reward_B, outcome_B [B] float, mask_T [T], scored_B [B] bool,
    rollout_T [T], group_B [B] int, num_groups int, state.
    Writes: reward_B, windows_B [B], kl_weight_T [T] float, difficulty_B [B] int.
    Source: arXiv 2510.08457, sec. 3.2; "code" is shawn0728/ARES.
    Differs from the source: a window begins at its token, also in the code's form, which counts
    those of a list of words; entropies are whole; how targets are carried over is ours.
    Nearest part: penalise_overlong_softly.
    Edges: no target yet -> this step's mean, so D is about it; unscored rewards stay.
    """

    writes: ClassVar[tuple[str, ...]] = ("reward_B", "windows_B", "kl_weight_T", "difficulty_B")
    declares: ClassVar[tuple[Column, ...]] = (Column("windows_B", "float", "open windows"),)
    # "paper" or "code". Default: paper.
    variant: str = "paper"
    # Tokens of a window. Default: released code.
    width: int = 4
    # alpha: most that the code's form adds or takes, reward units. Default: released code.
    weight: float = 0.5
    # KL weight where it is relaxed. Default: released code (the paper says below 1).
    relax: float = 0.67
    # Outcome from which a rollout is right. Default: ours (1, of rewards in {0, 1}).
    success: float = 1.0

    def __post_init__(self) -> None:
        require_one_of(self, "variant", ("paper", "code"))
        require(self, "width", low=1)
        require(self, "weight", low=0.0)
        require(self, "relax", low=0.0)
        require(self, "success")

    def init(self) -> dict[str, tuple[float, ...]]:
        """No target and no threshold yet (below 0)."""
        return {"target": (-1.0, -1.0, -1.0), "level": (-1.0,)}

    def __call__(
        self,
        entropy_behavior_T: Tensor,
        reward_B: Tensor,
        outcome_B: Tensor,
        mask_T: Tensor,
        scored_B: Tensor,
        rollout_T: Tensor,
        group_B: Tensor,
        state: Mapping[str, Any],
        num_groups: int,
    ) -> Result:
        right_B = scored_B & (outcome_B >= self.success)
        difficulty_B = windows.difficulty(right_B, group_B, num_groups, scored_B)
        num = reward_B.shape[0]
        begins_T, level = self._begins(entropy_behavior_T, mask_T, rollout_T, num, state)
        count_B = segments.count(rollout_T, num, begins_T).to(reward_B.dtype)
        mean_D = segments.mean(count_B, difficulty_B, 3, scored_B)
        carried_D = mean_D.new_tensor(state["target"])
        target_D = torch.where(carried_D >= 0, carried_D, mean_D)
        excess_B, target_B = count_B - target_D[difficulty_B], target_D[difficulty_B]
        weight_T = torch.ones_like(entropy_behavior_T)
        if self.variant == "paper":
            variance_D = segments.std(count_B, difficulty_B, 3, scored_B, ddof=0).square()
            factor_D = ((mean_D - target_D) / (variance_D + windows.EPS)).relu()
            cost_B = factor_D[difficulty_B] * windows.paper_cost(excess_B, difficulty_B)
            change_B = torch.where(right_B, 0, -cost_B)
            inside_N = windows.covered(begins_T[mask_T], self.width)
            weight_T[mask_T] = weight_T[mask_T].masked_fill(inside_N, self.relax)
        else:
            change_B, soft_B = windows.code_bonus(
                excess_B, target_B, difficulty_B, right_B, self.weight
            )
            relaxed_B = ~right_B & (difficulty_B == windows.EASY) & (soft_B >= 0.5)
            weight_T = torch.where(relaxed_B[rollout_T], self.relax, weight_T)
        new_B = torch.where(scored_B, reward_B + change_B, reward_B)
        numbers = {"ares/windows_mean": count_B, "ares/change_mean": new_B - reward_B}
        metrics = {name: _mean(values_B, scored_B) for name, values_B in numbers.items()}
        metrics |= {"ares/threshold": level, "ares/hard": _mean(difficulty_B == 2, scored_B)}
        return Result(
            (new_B, count_B, weight_T, difficulty_B), {**state, "level": (level,)}, metrics
        )

    def update(
        self, windows_B: Tensor, difficulty_B: Tensor, scored_B: Tensor, state: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Running means of the number of windows by difficulty, after the step."""
        mean_D = segments.mean(windows_B, difficulty_B, 3, scored_B).tolist()
        seen_D = (segments.count(difficulty_B, 3, scored_B) > 0).tolist()
        target = tuple(
            old if not seen else now if old < 0 else KEEP * old + (1 - KEEP) * now
            for old, now, seen in zip(state["target"], mean_D, seen_D, strict=True)
        )
        return {**state, "target": target}

    def _begins(
        self,
        entropy_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        num: int,
        state: Mapping[str, Any],
    ) -> tuple[Tensor, float]:
        """The tokens [T] at which a window of high entropy begins, and the threshold, nats."""
        rollout_N, entropy_N = rollout_T[mask_T], entropy_T[mask_T].nan_to_num()
        mean_N, whole_N = windows.window_means(entropy_N, rollout_N, self.width)
        paper = self.variant == "paper"
        values_N, where_N = (entropy_N, None) if paper else (mean_N, whole_N)
        top_B = segments.quantile(values_N, rollout_N, num, 0.95, where_N)
        has_B = segments.count(rollout_N, num, where_N) > 0
        one_B = torch.zeros_like(top_B, dtype=torch.int64)
        level = float(
            segments.mean(top_B, one_B, 1, has_B)
            if paper
            else segments.quantile(top_B, one_B, 1, 0.5, has_B)
        )
        if not paper and state["level"][0] >= 0:
            level = KEEP_LEVEL * state["level"][0] + (1 - KEEP_LEVEL) * level
        begins_T = torch.zeros_like(mask_T)
        begins_T[mask_T] = whole_N & ((mean_N > level) if paper else (mean_N >= level))
        return begins_T, level


def _mean(values_B: Tensor, where_B: Tensor) -> float:
    return float(segments.mean(values_B.double(), torch.zeros_like(where_B).long(), 1, where_B))
