"""Update on one turn of all rollouts at a time, and carry each update's effect to the next ones."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Update, Updates, require, require_one_of


@dataclass(frozen=True)
class UpdateTurnByTurn:
    """The turns of a rollout learn one after another, each weighted by the updates before it.

        M_i = 1;  for each turn k in order, over the rollouts that have it:
            one update, logp_old computed again before it, advantages times M_i
            s_i = clip(exp(clamp(mean_{t in turn k of i} (logp_t - logp_old_t), -nats, nats)),
                       1 - carry_low, 1 + carry_high)
            M_i <- clip(M_i s_i, 1 - carry_low, 1 + carry_high)

    Reads: advantage_T [T] float, mask_T [T] bool, rollout_T, turn_T [T] int, index_K [K] int,
        num_rollouts int; rng.
    Writes: updates (tokens_T and factor_T each).
    Source: arXiv 2602.06554; code modelscope/AgentEvolver (branch seeupo).
    Differs from the source: M is stored per rollout; its balancing of rows can mix them up.
    Nearest part: split_into_minibatches; equal to one update of it if every rollout has one turn.
    Edges: a rollout without tokens in a turn keeps its M; M ends with the step.
    """

    declares: ClassVar[tuple[Column, ...]] = (
        Column("turn_change_K", "float", "mean change of its log-probabilities by its update; "
               "NaN: not updated yet", "nats", door=("turn_updates",)),
    )  # fmt: skip
    # "reverse" (last turn first), "forward" or "random". Default: paper (reverse).
    order: str = "reverse"
    # How far below 1 a factor can go. Default: released code (0.2).
    carry_low: float = 0.2
    # How far above 1 a factor can go. Default: released code (0.2).
    carry_high: float = 0.2
    # Largest mean log-ratio of a turn, nats. Default: released code (10).
    carry_nats: float = 10.0

    def __post_init__(self) -> None:
        require_one_of(self, "order", ("reverse", "forward", "random"))
        require(self, "carry_low", low=0.0, high=1.0)
        require(self, "carry_high", "carry_nats", low=0.0)

    def __call__(
        self, advantage_T: Tensor, mask_T: Tensor, rollout_T: Tensor, turn_T: Tensor,
        index_K: Tensor, num_rollouts: int, rng: torch.Generator,
    ) -> Updates:  # fmt: skip
        index_T = index_K[turn_T]
        factor_B = torch.ones(num_rollouts, dtype=torch.float64, device=rollout_T.device)
        for index in self._turns(index_K, rng):
            chosen_T = (index_T == index) & mask_T
            factor_T = factor_B[rollout_T].to(advantage_T.dtype)
            answer = yield Update(chosen_T, factor_T, before=("logp_old_T",), after=("logp_T",))
            measured = answer[1] if answer is not None else {}
            if measured:
                change_T = (measured["logp_T"] - measured["logp_old_T"]).to(rollout_T.device)
                factor_B = self.carried(factor_B, change_T, rollout_T, chosen_T)
        return {"turns/carried_change": segments.overall((factor_B - 1).abs())}

    def carried(
        self, factor_B: Tensor, change_T: Tensor, rollout_T: Tensor, chosen_T: Tensor
    ) -> Tensor:
        """The factors [B] after an update that changed log-probabilities by `change_T`, nats."""
        mean_B = segments.mean(change_T.double(), rollout_T, factor_B.shape[0], chosen_T)
        low, high = 1 - self.carry_low, 1 + self.carry_high
        ratio_B = mean_B.clamp(-self.carry_nats, self.carry_nats).exp().clamp(low, high)
        return (factor_B * ratio_B).clamp(low, high)

    def _turns(self, index_K: Tensor, rng: torch.Generator) -> list[int]:
        """The indices of turns that occur, in the order of the updates."""
        found = torch.unique(index_K)
        if self.order == "random":
            found = found[torch.randperm(found.shape[0], generator=rng).to(found.device)]
        turns: list[int] = found.tolist()
        return turns[::-1] if self.order == "reverse" else turns
