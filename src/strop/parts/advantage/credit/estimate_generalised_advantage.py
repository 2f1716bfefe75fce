"""Credit a token with how much better than expected things went from it on."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, present, require
from strop.parts.advantage.credit._bootstrap import bootstrapped, unlogged


@dataclass(frozen=True)
class EstimateGeneralisedAdvantage:
    """A token is credited with the critic's surprises at it and, ever less, at those after it.

        delta_t = r_t + gamma * V_{next of t} - V_t
        advantage_t = delta_t + gamma * lam * advantage_{next of t};  return_t = advantage_t + V_t

    over the policy tokens of a rollout: "next" skips an environment's tokens. r is reward_T; where
    nothing writes that, the rollout's advantage_B on its last policy token. V after the last token
    is 0. It is that token's own V where the rollout is pending, and with bootstrap_truncated where
    it was cut off.

    Reads: value_T [T] float, mask_T [T] bool, rollout_T [T] int, scored_B [B] bool, reward_T [T]
    float or advantage_B [B] float, pending_B [B] bool if given, truncated_B [B] bool where
    bootstrap_truncated.
    Writes: advantage_T, return_T [T] float.
    Source: arXiv 1506.02438, eq. 16; pending rollouts arXiv 2506.15050 (EGAE).
    Differs from the source: no.
    Nearest part: discount_from_end; equal to it when lam is 1 and every V is 0.
    Edges: masked tokens and rollouts that are neither scored nor pending -> 0; values get no
    gradient; a pending rollout without reward_T has the reward 0.
    """

    writes: ClassVar[tuple[str, ...]] = ("advantage_T", "return_T")
    # Discount of a token. Default: released code (verl).
    gamma: float = 1.0
    # How far surprises reach back: 0 nowhere, 1 to all tokens. Default: released code (verl).
    lam: float = 1.0
    # Whether a rollout that was cut off counts as continuing. Default: paper (1506.02438: ended).
    bootstrap_truncated: bool = False

    def __post_init__(self) -> None:
        require(self, "gamma", "lam", low=0.0, high=1.0)

    @property
    def any_of(self) -> tuple[tuple[str, ...], ...]:
        """Something that is earned, and which rollouts were cut off where that counts."""
        earned = ("reward_T", "advantage_B")
        return (earned, ("truncated_B",)) if self.bootstrap_truncated else (earned,)

    @property
    def unlogged(self) -> frozenset[str]:
        """The metrics of cut rollouts, where these count as ended."""
        return unlogged(self.bootstrap_truncated)

    def __call__(
        self,
        value_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        scored_B: Tensor,
        reward_T: Tensor | None = None,
        advantage_B: Tensor | None = None,
        truncated_B: Tensor | None = None,
        pending_B: Tensor | None = None,
    ) -> Result:
        counts_B = scored_B if pending_B is None else scored_B | pending_B
        row_N = segments.rows_where(mask_T & segments.at(counts_B, rollout_T))
        key_N = segments.at(rollout_T, row_N)
        value_N = segments.at(value_T.detach(), row_N).double()
        last_N = segments.ends(key_N)
        if reward_T is not None:
            reward_N = segments.at(reward_T, row_N).double()
        else:
            ended_N = last_N if pending_B is None else last_N & ~segments.at(pending_B, key_N)
            reward_N = torch.where(ended_N, segments.at(present(advantage_B), key_N).double(), 0)
        after_N = self._after(value_N, key_N, truncated_B, pending_B)
        next_N = torch.where(last_N, after_N, value_N.roll(-1))
        surprise_N = reward_N + self.gamma * next_N - value_N
        credit_N = segments.reward_to_go(surprise_N, key_N, self.gamma * self.lam)
        advantage_T, return_T = torch.zeros_like(value_T), torch.zeros_like(value_T)
        advantage_T[row_N] = credit_N.to(value_T.dtype)
        return_T[row_N] = (credit_N + value_N).to(value_T.dtype)
        metrics: dict[str, float] = {}
        if self.bootstrap_truncated and truncated_B is not None:
            metrics = bootstrapped(value_N[last_N], truncated_B[key_N[last_N]])
        return Result((advantage_T, return_T), metrics=metrics)

    def _after(
        self, value_N: Tensor, key_N: Tensor, truncated_B: Tensor | None, pending_B: Tensor | None
    ) -> Tensor:
        """The value expected after the token if it is the last of its rollout [N]."""
        on_N = torch.zeros_like(key_N, dtype=torch.bool)
        if pending_B is not None:
            on_N = segments.at(pending_B, key_N)
        if self.bootstrap_truncated:
            on_N = on_N | segments.at(present(truncated_B), key_N)
        return torch.where(on_N, value_N, 0)
