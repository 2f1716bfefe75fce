"""Compare one answer of a prompt with how often earlier answers to it were right."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Result, require, require_one_of
from strop.support.errors import UserError

CLAMP_NATS = 20.0


@dataclass(frozen=True)
class SubtractTrackedSuccess:
    """A rollout learns from how much better it did than this prompt's success so far.

        advantage_i <- advantage_i - V,  V = a / (a + b) of its prompt;  after the step
        a <- rho a + [outcomes > 0.5], b <- rho b + [outcomes <= 0.5];  new prompt: a = N v,
        b = N (1 - v), v = first_success_i or 0.5, N = 1 / (1 - forget[0])
        rho = forget[1] - min(K / target, 1) (forget[1] - forget[0]), the middle before the first K;
        code: that only where K > target, else forget[0] + K / target (forget[1] - forget[0])

    K: mean over the last `window` steps of the KL to the reference per token (k3), which is the
    mean of the rollouts' means; without the current step (paper), or with it (code).
    whole_B: one key for all rollouts of the step, 0; tracked_B: the V subtracted; drift_B: the KL
    of the whole rollout, below 0 where it is not known.

    Reads: advantage_B, outcome_B [B] float, scored_B [B] bool, group_B [B], uid_P [P] int, mask_T,
    rollout_T, length_B; logp_old_T, logp_ref_T [T], first_success_B [B] float where given; state.
    Writes: advantage_B, tracked_B, drift_B [B] float, whole_B [B] int.
    Source: arXiv 2512.18215; code ruiiu/MSSR.
    Differs from the source: its rule for rho ("code") jumps at the target, is lowest at 0 and
    counts the step's own KL.
    Nearest part: subtract_group_mean, which needs several rollouts of a prompt.
    Edges: several rollouts of a prompt count at once; unscored -> 0; state is in the checkpoint.
    """

    writes: ClassVar[tuple[str, ...]] = ("advantage_B", "tracked_B", "whole_B", "drift_B")
    declares: ClassVar[tuple[Column, ...]] = (
        Column("tracked_B", "float", "the tracked success that was subtracted", "reward"),
        Column("whole_B", "int", "one key for all rollouts of the step", "key"),
        Column("drift_B", "float", "divergence from the reference; below 0: unknown", "nats"),
    )
    # Lowest and highest rho. Default: released code.
    forget: tuple[float, float] = (0.875, 0.96)
    # KL per token at which the past counts least, nats. Default: released code.
    target: float = 0.01
    # Steps that the KL is averaged over. Default: released code (10; its config's 20 is not used).
    window: int = 10
    # How rho follows the KL: "paper" or "code". Default: paper (the further away, the less).
    source_form: str = "paper"

    def __post_init__(self) -> None:
        require(self, "target", low=1e-12)
        require(self, "window", low=1)
        require_one_of(self, "source_form", ("paper", "code"))
        if len(self.forget) != 2 or not 0 <= self.forget[0] <= self.forget[1] < 1:
            raise UserError(
                f"subtract_tracked_success.forget must be two shares below 1, rising: {self.forget}"
            )

    def init(self) -> dict[str, Any]:
        """No prompt seen, no KL measured."""
        none = torch.zeros(0, dtype=torch.float64)
        return {"uid": none.long(), "right": none, "wrong": none, "kl": []}

    def rho(self, kl: list[float]) -> float:
        """The share of the past counts that remains after a step, from the KLs of recent steps."""
        low, high = self.forget
        if not kl:
            return (low + high) / 2
        share = sum(kl) / len(kl) / self.target
        if self.source_form == "code" and share <= 1:
            return low + share * (high - low)
        return high - min(share, 1.0) * (high - low)

    def __call__(
        self,
        advantage_B: Tensor,
        scored_B: Tensor,
        group_B: Tensor,
        uid_P: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        logp_old_T: Tensor | None = None,
        logp_ref_T: Tensor | None = None,
        first_success_B: Tensor | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> Result:
        value_B = torch.full_like(advantage_B, 0.5)
        if first_success_B is not None:
            value_B = first_success_B.to(advantage_B.dtype).nan_to_num(0.5)
        if state is not None and state["uid"].numel():
            uid_N, right_N, wrong_N = (state[n].to(uid_P.device) for n in ("uid", "right", "wrong"))
            row_P = torch.searchsorted(uid_N, uid_P).clamp(max=uid_N.shape[0] - 1)
            tracked_P = (right_N / (right_N + wrong_N))[row_P].to(value_B.dtype)
            value_B = torch.where((uid_N[row_P] == uid_P)[group_B], tracked_P[group_B], value_B)
        raw_B = torch.where(scored_B, advantage_B - value_B, 0)
        drift_B = torch.full_like(raw_B, -1)  # below 0: not measured; so k3 has double precision
        if logp_old_T is not None and logp_ref_T is not None:
            gap_T = (logp_ref_T - logp_old_T).double().clamp(-CLAMP_NATS, CLAMP_NATS)
            drift_B = segments.total(gap_T.expm1() - gap_T, rollout_T, len(scored_B), mask_T)
        columns = (value_B, drift_B.to(raw_B.dtype))
        tracked_B, drift_B = (torch.where(scored_B, each, 0) for each in columns)
        metrics = {"tracked/baseline": segments.overall(tracked_B, scored_B)}
        return Result((raw_B, tracked_B, torch.zeros_like(group_B), drift_B), metrics=metrics)

    def update(
        self,
        outcome_B: Tensor,
        tracked_B: Tensor,
        scored_B: Tensor,
        group_B: Tensor,
        uid_P: Tensor,
        drift_B: Tensor,
        length_B: Tensor,
        state: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Counts and KLs after a step."""
        old_N = state["uid"].to(uid_P.device)
        uid_N, key = torch.unique(torch.cat([old_N, uid_P]), return_inverse=True)
        known, key_B = key[: old_N.shape[0]], key[old_N.shape[0] :][group_B]
        right_N = segments.count(key_B, len(uid_N), scored_B & (outcome_B > 0.5))
        wrong_N = segments.count(key_B, len(uid_N), scored_B) - right_N
        first_N = segments.mean(tracked_B, key_B, len(uid_N), scored_B).double()
        measured_B = scored_B & (length_B > 0)
        kl = state["kl"]
        if bool(measured_B.any()) and bool((drift_B >= 0).all()):
            kl_1 = segments.mean(drift_B / length_B, torch.zeros_like(group_B), 1, measured_B)
            kl = [*kl, float(kl_1)][-self.window :]
        rho = self.rho(kl if self.source_form == "code" else state["kl"])
        size = 1 / (1 - self.forget[0])
        met_N = right_N + wrong_N > 0
        kept_N = met_N.index_fill(0, known, True)

        def counted(name: str, start_N: Tensor, new_N: Tensor) -> Tensor:
            past_N = start_N.index_put((known,), state[name].to(uid_P.device))
            return torch.where(met_N, rho * past_N + new_N, past_N)[kept_N]

        return {
            "uid": uid_N[kept_N],
            "right": counted("right", size * first_N, right_N),
            "wrong": counted("wrong", size * (1 - first_N), wrong_N),
            "kl": kl,
        }
