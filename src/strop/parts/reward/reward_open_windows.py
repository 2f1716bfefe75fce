"""Reward few open choices on easy prompts and many on hard ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require, require_one_of
from strop.parts.reward import _open_windows as windows

KEEP = 0.9  # share of a target that stays at each step
ALPHA_LR, ALPHA_MOST = 0.05, 2.0  # of the released code
COSTLY = 0.5  # nats above the threshold, of the released code


@dataclass(frozen=True)
class RewardOpenWindows:
    """The number of high-entropy windows moves the reward, by the prompt's difficulty d.

        N_i = windows_B;  D = N - target(d)
        paper: reward_i - 1[wrong] lambda_d g(D), lambda_d = max(0, (E N - target) / (Var N + eps)),
        g = relu(D) easy, |D| medium, relu(-D) hard; target = running mean of E N of earlier steps
        code: + a bonus (`_open_windows`) capped by alpha_d; target = E N, rounded, over prompts;
        alpha_d <- clip(alpha_d +- 0.05 (E N - target), 0, 2), + where easy or medium, - where hard

    d: group accuracy from 2/3 easy (0), from 1/3 medium (1), else hard (2). kl_weight: paper: relax
    in windows; code: on easy wrong answers of window_cost 0.5 and more; else 1.

    Reads: windows_B, window_cost_B [B], reward_B, outcome_B [B] float, in_window_T, mask_T [T],
    scored_B [B] bool, rollout_T [T] int, group_B [B] int, num_groups int, state.
    Writes: reward_B [B], kl_weight_T [T] float, difficulty_B [B] int.
    Source: arXiv 2510.08457, sec. 3.2; "code" is shawn0728/ARES.
    Differs from the source: how the paper's targets are carried over is ours; the released code
    never passes on what its relaxed weight depends on, so there it is 1.
    Nearest part: penalise_overlong_softly.
    Edges: paper: no target yet -> this step's mean, so lambda is 0; all N of a difficulty equal and
    above the target -> eps, 1e-8, is all that lambda is divided by; unscored rewards stay.
    """

    writes: ClassVar[tuple[str, ...]] = ("reward_B", "kl_weight_T", "difficulty_B")
    # "paper" or "code". Default: paper.
    variant: str = "paper"
    # alpha: most that the code's form changes at first, reward units. Default: released code.
    weight: float = 0.5
    # KL weight where it is relaxed. Default: released code (the paper says below 1).
    relax: float = 0.67
    # Outcome from which a rollout is right. Default: ours (1, of rewards in {0, 1}).
    success: float = 1.0

    def __post_init__(self) -> None:
        require_one_of(self, "variant", ("paper", "code"))
        require(self, "weight", "relax", low=0.0)
        require(self, "success")

    def init(self) -> dict[str, tuple[float, ...]]:
        """No target yet (below 0), and the first caps."""
        return {"target": (-1.0, -1.0, -1.0), "alpha": (self.weight,) * 3}

    def __call__(
        self, windows_B: Tensor, window_cost_B: Tensor, in_window_T: Tensor, reward_B: Tensor,
        outcome_B: Tensor, mask_T: Tensor, scored_B: Tensor, rollout_T: Tensor, group_B: Tensor,
        state: Mapping[str, tuple[float, ...]], num_groups: int,
    ) -> Result:  # fmt: skip
        right_B = scored_B & (outcome_B >= self.success)
        difficulty_B = windows.difficulty(right_B, group_B, num_groups, scored_B)
        if self.variant == "paper":
            change_B = self._paper(windows_B, difficulty_B, scored_B, state)
            change_B = torch.where(right_B, 0, change_B)
            relaxed_T = in_window_T & mask_T
        else:
            mean_D, seen_D = _over_prompts(windows_B, difficulty_B, group_B, scored_B, num_groups)
            alpha_B = windows_B.new_tensor(_moved(state["alpha"], mean_D, seen_D))[difficulty_B]
            target_B = mean_D.round()[difficulty_B]
            given = (windows_B - target_B, target_B, difficulty_B, right_B, alpha_B)
            change_B = windows.code_bonus(*given)
            easy_B = ~right_B & (difficulty_B == windows.EASY)
            relaxed_T = (easy_B & (window_cost_B >= COSTLY))[rollout_T]
        new_B = torch.where(scored_B, reward_B + change_B, reward_B)
        metrics = {
            "ares/change_mean": segments.overall(new_B - reward_B, scored_B),
            "ares/hard": segments.overall(difficulty_B == windows.HARD, scored_B),
        }
        weight_T = reward_B.new_ones(mask_T.shape).masked_fill(relaxed_T, self.relax)
        return Result((new_B, weight_T, difficulty_B), state, metrics)

    def _paper(
        self,
        windows_B: Tensor,
        difficulty_B: Tensor,
        scored_B: Tensor,
        state: Mapping[str, tuple[float, ...]],
    ) -> Tensor:
        """The change of a wrong answer's reward."""
        mean_D = segments.mean(windows_B, difficulty_B, 3, scored_B)
        carried_D = mean_D.new_tensor(state["target"])
        target_D = torch.where(carried_D >= 0, carried_D, mean_D)
        variance_D = segments.std(windows_B, difficulty_B, 3, scored_B, ddof=0).square()
        factor_D = ((mean_D - target_D) / (variance_D + windows.EPS)).relu()
        excess_B = windows_B - target_D[difficulty_B]
        return -factor_D[difficulty_B] * windows.paper_cost(excess_B, difficulty_B)

    def observe(
        self, windows_B: Tensor, difficulty_B: Tensor, group_B: Tensor, scored_B: Tensor,
        num_groups: int, state: Mapping[str, tuple[float, ...]],
    ) -> Mapping[str, tuple[float, ...]]:  # fmt: skip
        """The caps after a step, or the running means of the number of windows by difficulty.

        Curation may have its rollouts paid in parts, and all of them count, also those it drops.
        """
        if self.variant == "code":
            found = _over_prompts(windows_B, difficulty_B, group_B, scored_B, num_groups)
            return {**state, "alpha": _moved(state["alpha"], *found)}
        mean_D = segments.mean(windows_B, difficulty_B, 3, scored_B).tolist()
        seen_D = (segments.count(difficulty_B, 3, scored_B) > 0).tolist()
        target = tuple(
            old if not seen else now if old < 0 else KEEP * old + (1 - KEEP) * now
            for old, now, seen in zip(state["target"], mean_D, seen_D, strict=True)
        )
        return {**state, "target": target}


def _over_prompts(
    windows_B: Tensor, difficulty_B: Tensor, group_B: Tensor, scored_B: Tensor, num_groups: int
) -> tuple[Tensor, Tensor]:
    """Mean windows of the prompts of each difficulty [3], and whether there are any."""
    mean_P = segments.mean(windows_B, group_B, num_groups, scored_B)
    some_P = segments.count(group_B, num_groups, scored_B) > 0
    of_P = difficulty_B[segments.first(group_B, num_groups)]
    return segments.mean(mean_P, of_P, 3, some_P), segments.count(of_P, 3, some_P) > 0


def _moved(alpha: tuple[float, ...], mean_D: Tensor, seen_D: Tensor) -> tuple[float, ...]:
    """The caps moved by what rounding leaves of a step's mean windows."""
    signs, over_D = (1, 1, -1), mean_D - mean_D.round()
    rows = zip(alpha, over_D.tolist(), signs, seen_D.tolist(), strict=True)
    return tuple(
        min(max(old + sign * ALPHA_LR * over, 0.0), ALPHA_MOST) if seen else old
        for old, over, sign, seen in rows
    )
