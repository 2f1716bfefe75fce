"""Pay for states that are new to the episode and rare in the run."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require, require_one_of

SAME = 1e-9  # deviation over mean, below which all bonuses are equal up to rounding
FORMS = ("product", "sum", "episodic", "global")


@dataclass(frozen=True)
class RewardNewStates:
    """An episode is paid for visiting states that are new to it, more for those rare in the run.

        e_k = 1 where turn k is the first of its rollout in its state, else 0
        g_k = 1 / sqrt(N_k),  N_k: 1 + the turns in the state in earlier steps
        b_k = e_k g_k ("product"), e_k + mix g_k ("sum"), e_k ("episodic"), g_k ("global")
        reward_i <- reward_i + beta sum_k b_k / s,   s: deviation of all b so far, this step's too

    The episode part is reset with every rollout, the global one lasts for the run: where layouts
    differ from prompt to prompt the first does the work, where they are shared the second, and the
    product is near the better of both. States are those of the environment (`state`, which gigpo
    compares too). Metrics: new_states/bonus_mean (of scored rollouts), /frac_first (turns in a
    state that is new to their rollout), /known (states seen so far).

    Reads: reward_B [B] float, scored_B [B] bool, state_K, rollout_K [K] int, num_rollouts int,
    state.   Writes: reward_B [B] float.
    Source: arXiv 2306.03236 (count form), code facebookresearch/e3b.
    Differs from the source: a rollout's bonuses are summed into its one reward; N grows between
    steps, so that rollouts of a step are paid alike; the forms with learnt embeddings are left out.
    Nearest part: reward_answered_turns, which pays for turns wherever they lead.
    Edges: all b of one value, up to rounding -> s is 1; unscored rollouts stay; counts are in the
    checkpoint.
    """

    # What a bonus of one deviation is worth, reward units. Default: released code (1).
    beta: float = 1.0
    # "product", "sum", "episodic" or "global". Default: paper (product).
    form: str = "product"
    # Weight of the global part in a sum. Default: released code (1).
    mix: float = 1.0

    def __post_init__(self) -> None:
        require(self, "beta", "mix", low=0.0)
        require_one_of(self, "form", FORMS)

    def init(self) -> dict[str, Any]:
        """The initial state: no state visited, no bonus paid."""
        none = torch.zeros(0, dtype=torch.int64)
        return {"states": none, "counts": none, "moments": (0, 0.0, 0.0)}

    def __call__(
        self,
        reward_B: Tensor,
        scored_B: Tensor,
        state_K: Tensor,
        rollout_K: Tensor,
        num_rollouts: int,
        state: dict[str, Any],
    ) -> Result:
        state_K, rollout_K = state_K.cpu(), rollout_K.cpu()
        first_K = first_visits(state_K, rollout_K)
        known_N, count_N = state["states"], state["counts"]
        row_K, seen_K = segments.find(known_N, state_K)
        before_K = torch.zeros_like(state_K) if not len(known_N) else count_N[row_K]
        rare_K = (torch.where(seen_K, before_K, 0) + 1).double().rsqrt()
        bonus_K = self._bonus(first_K.double(), rare_K)
        moments = _more(state["moments"], bonus_K)
        deviation = math.sqrt(moments[2] / moments[0]) if moments[0] else 0.0
        deviation = deviation if deviation > SAME * abs(moments[1]) else 0.0
        bonus_B = segments.total(bonus_K, rollout_K, num_rollouts).to(reward_B)
        bonus_B = torch.where(scored_B, self.beta * bonus_B / (deviation or 1.0), 0)
        metrics = {
            "new_states/bonus_mean": float(bonus_B[scored_B].mean()) if scored_B.any() else 0.0,
            "new_states/frac_first": float(first_K.double().mean()) if len(first_K) else 0.0,
            "new_states/known": float(len(torch.unique(torch.cat([known_N, state_K])))),
        }
        return Result(reward_B + bonus_B, {**state, "moments": moments}, metrics)

    def observe(self, state_K: Tensor, state: dict[str, Any]) -> dict[str, Any]:
        """The turns in every state after a step; curation may have its rollouts paid in parts."""
        state_K = state_K.cpu()
        both_N = torch.cat([state["states"], state_K])
        states_N, place_N = torch.unique(both_N, return_inverse=True)
        added = torch.cat([state["counts"], torch.ones_like(state_K)])
        counts_N = torch.zeros_like(states_N).index_add_(0, place_N, added)
        return {**state, "states": states_N, "counts": counts_N}

    def _bonus(self, first_K: Tensor, rare_K: Tensor) -> Tensor:
        forms = {
            "product": first_K * rare_K,
            "sum": first_K + self.mix * rare_K,
            "episodic": first_K,
            "global": rare_K,
        }
        return forms[self.form]


def first_visits(state_K: Tensor, rollout_K: Tensor) -> Tensor:
    """Bool [K]: no earlier turn of the rollout was in the turn's state."""
    visit_K, num = segments.key_of(rollout_K, state_K)
    index_K = torch.arange(len(visit_K))
    earliest_N = torch.full((num,), len(visit_K)).scatter_reduce(0, visit_K, index_K, "amin")
    return index_K == earliest_N[visit_K]


def _more(moments: tuple[int, float, float], x_K: Tensor) -> tuple[int, float, float]:
    """Count, mean and sum of squared distances from it, updated with more numbers."""
    count, mean, squares = moments
    if not len(x_K):
        return moments
    added, there = len(x_K), float(x_K.mean())
    apart, total = there - mean, count + added
    squares += float(((x_K - there) ** 2).sum()) + apart**2 * count * added / total
    return total, mean + apart * added / total, squares
