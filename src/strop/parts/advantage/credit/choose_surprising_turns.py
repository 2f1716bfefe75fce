"""Choose the turns that went better than predicted, in the episodes that did so most."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Result, present, require, require_one_of

MARGIN = 0.05  # of the released code


@dataclass(frozen=True)
class ChooseSurprisingTurns:
    """Only good actions teach: those after which success is likelier than before.

        V = sigmoid(log-odds): V_h before turn h of H, 0 after the last; U before the first
        r = [outcome > 0];  m_h = lam^(H - h) r
        A_h = m_h + (1 - m_h) (V_{h+1} + r_h - V_h),  r_h = r at h = H, else 0
        chosen: A_h > 1 / H, in rollouts whose r - U is in the largest `share` of the step's
        source_form "code": chosen A_h = V_{h+1} - V_h - 0.05 + r_h + m_h > 0
        by_outcome: in rollouts whose outcome is in the largest `share`, whatever U

    return_T is r, what V and U should have been. Metrics: chosen/turns (of all), chosen/rollouts.

    Reads: value_K, next_value_K, value_task_K [K] float (log-odds), outcome_B [B] float, rollout_K
    [K] int, turn_T [T] int, mask_T [T] bool, scored_B [B] bool.
    Writes: advantage_T [T] float (1 of chosen turns, else 0), learning_T [T] bool, return_T [T].
    Source: arXiv 2406.11896, eq. 3 and sec. 4; code DigiRL-agent/digirl.
    Differs from the source: no.
    Nearest part: estimate_turn_advantage, which weighs every turn and chooses none.
    Edges: an episode of one turn -> not chosen (A <= 1 / H) except by "code"; ties at the share ->
    all of them; unscored rollouts -> not chosen.
    """

    writes: ClassVar[tuple[str, ...]] = ("advantage_T", "learning_T", "return_T")
    declares: ClassVar[tuple[Column, ...]] = (
        Column("value_task_K", "float", "value before the first turn of the turn's rollout"),
    )
    # Discount of success by turn. Default: released code (0.5).
    lam: float = 0.5
    # Share of the rollouts that are learnt from. Default: released code (a quantile of 0.9).
    share: float = 0.1
    # "paper", or "code" with its other advantage. Default: paper.
    source_form: str = "paper"
    # Whether episodes are chosen by their outcome alone. Default: ours (no; the released code's
    # offline phase does).
    by_outcome: bool = False

    def __post_init__(self) -> None:
        require(self, "lam", "share", low=0.0, high=1.0)
        require_one_of(self, "source_form", ("paper", "code"))

    @property
    def unread(self) -> frozenset[str]:
        """The value of the task is read only where episodes are compared with it."""
        return frozenset({"value_task_K"} if self.by_outcome else ())

    @property
    def any_of(self) -> tuple[tuple[str, ...], ...]:
        """Without `by_outcome` the value of the task is required."""
        return () if self.by_outcome else (("value_task_K",),)

    def __call__(
        self, value_K: Tensor, next_value_K: Tensor, outcome_B: Tensor, rollout_K: Tensor,
        turn_T: Tensor, mask_T: Tensor, scored_B: Tensor, value_task_K: Tensor | None = None,
    ) -> Result:  # fmt: skip
        num = outcome_B.shape[0]
        success_B = (scored_B & (outcome_B > 0)).to(value_K.dtype)
        size_K = segments.count(rollout_K, num)[rollout_K]
        left_K = size_K - 1 - segments.order_within(rollout_K, num)
        last_K = left_K == 0
        after_K = torch.where(last_K, 0, next_value_K.detach().sigmoid())
        reward_K = success_B[rollout_K] * last_K
        change_K = after_K + reward_K - value_K.detach().sigmoid()
        seen_K = self.lam**left_K * success_B[rollout_K]
        if self.source_form == "code":
            good_K = change_K - MARGIN + seen_K > 0
        else:
            good_K = seen_K + (1 - seen_K) * change_K > 1 / size_K
        surprise_B = outcome_B
        if not self.by_outcome:
            chance_K = present(value_task_K).detach().sigmoid()
            surprise_B = success_B - segments.mean(chance_K, rollout_K, num)
        best_B = self._best(surprise_B.double(), scored_B)
        chosen_K = good_K & best_B[rollout_K]
        learning_T = chosen_K[turn_T] & mask_T
        metrics = {
            "chosen/turns": float(chosen_K.sum() / max(len(chosen_K), 1)),
            "chosen/rollouts": float(best_B.sum() / max(num, 1)),
        }
        return_T = torch.where(mask_T, success_B[rollout_K][turn_T], 0)
        value = (learning_T.to(value_K.dtype), learning_T, return_T)
        return Result(value, metrics=metrics)

    def _best(self, surprise_B: Tensor, scored_B: Tensor) -> Tensor:
        """The rollouts [B] bool that surprised most."""
        one_B = torch.zeros_like(surprise_B, dtype=torch.int64)
        line = segments.quantile(surprise_B, one_B, 1, 1 - self.share, scored_B)
        return scored_B & (surprise_B >= line[0] - 1e-12)
