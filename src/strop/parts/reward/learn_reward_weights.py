"""Train the reward's weights so that the policy that is optimal for them agrees with a judge."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.batch.columns import Column
from strop.method.part import Result, require
from strop.method.services import Grading, Log
from strop.parts.reward._measured import measured
from strop.parts.reward._preferred_pairs import PreferredPairs
from strop.support.errors import UserError


@dataclass(frozen=True)
class LearnRewardWeights:
    """Rewards get the weights for which the policy that follows them is preferred.

        r_i = sum_m nu_m phi_{i,m}, phi: the given rewards except the preference, and the answer's
                state if an earlier part has pooled it (pool_states): nu is a head on it
        y_ij = 1, 1/2 or 0 where rollout i's preference is above, equal to or below j's
        L_ij = -y_ij log s(r_i - r_j) - (1 - y_ij) log s(r_j - r_i), s the logistic function
        g = mean_ij (s(r_i - r_j) - y_ij)(phi_i - phi_j) + decay nu
            + mean_ij L_ij (phi_i + phi_j - 2 mean_{k not i, j} phi_k) / beta
        nu <- nu - lr g, after every `every`-th step

    Means are over a prompt's pairs, then over prompts. The last line of g is the implicit term: the
    best policy for E r - beta KL(policy || reference) is reference exp(r / beta) / Z, so nu moves
    its log-probability of i by (phi_i - E phi) / beta. nu starts at the rewards' weights, and at 0
    for states. Metrics: parl/loss (mean L), /agreement (share of decided pairs that r orders as the
    judge does), /weight/{name}, /head (length of the states' weights).

    Reads: reward_BM [B, M] float (NaN: 0), rollout_uid_B, group_B [B] int, scored_B [B] bool,
    state_BM [B, D] float if there is one; grading (names), log, state.
    Writes: reward_B, preference_B [B], feature_BM [B, .] float.
    Source: arXiv 2308.02585 (bilevel objective and its gradient).
    Differs from the source: the reward is linear in phi; the policy's response is that of its
    optimum in the space of distributions, where the source inverts the Hessian in its parameters.
    Nearest part: score_with_verifiers, whose weights stay.
    Edges: no preference (NaN) -> in no pair; fewer than 3 rollouts in a group -> no implicit term;
    no pair -> nu stays. nu is in the checkpoint.
    """

    writes: ClassVar[tuple[str, ...]] = ("reward_B", "preference_B", "feature_BM")
    declares: ClassVar[tuple[Column, ...]] = (
        Column("preference_B", "float", "a judge's score of the rollout; NaN: none"),
        Column("feature_BM", "float", "rewards and states that trained weights add up", door=None),
    )
    # Reward function, or column that one logs, that has the preferences. Default: ours.
    preference: str = "preference"
    # Learning rate of the weights. Default: ours (not found).
    lr: float = 0.1
    # Steps of the policy per step of the weights. Default: ours (not found).
    every: int = 1
    # Weight decay, the paper's Z. Default: ours (none).
    decay: float = 0.0
    # Price of leaving the reference in the policy's objective; 0: no implicit term. Default: ours.
    beta: float = 0.05

    def __post_init__(self) -> None:
        require(self, "lr", "decay", "beta", low=0.0)
        require(self, "every", low=1)

    def init(self) -> dict[str, Any]:
        """The initial state: no weights, no step."""
        return {"weights": torch.zeros(0, dtype=torch.float64), "steps": 0}

    def __call__(
        self, reward_BM: Tensor, rollout_uid_B: Tensor, group_B: Tensor, scored_B: Tensor,
        grading: Grading, log: Log, state: dict[str, Any], state_BM: Tensor | None = None,
    ) -> Result:  # fmt: skip
        given = (reward_BM, rollout_uid_B, grading, log)
        preference_B = measured("learn_reward_weights", self.preference, *given)
        names = grading.reward_names
        others = [m for m, name in enumerate(names) if name != self.preference]
        if not others and state_BM is None:
            raise UserError(
                f"learn_reward_weights: beside {self.preference} there is no reward that it could "
                "weigh: give another --reward, or states"
            )
        feature_BM = reward_BM[:, others].nan_to_num()
        if state_BM is not None:
            feature_BM = torch.cat([feature_BM, state_BM.to(feature_BM)], 1)
        weights = state["weights"]
        if weights.numel() == 0:
            first = [grading.reward_weights[m] for m in others]
            first += [0.0] * (feature_BM.shape[1] - len(others))
            weights = torch.tensor(first, dtype=torch.float64)
        worth_B = (feature_BM.double() @ weights.to(feature_BM.device)).to(reward_BM.dtype)
        metrics = {f"parl/weight/{names[m]}": float(weights[at]) for at, m in enumerate(others)}
        if state_BM is not None:
            metrics["parl/head"] = float(weights[len(others) :].norm())
        pairs = PreferredPairs.of(feature_BM, preference_B, group_B, scored_B, weights)
        metrics |= pairs.metrics()
        return Result((worth_B, preference_B, feature_BM), {**state, "weights": weights}, metrics)

    def update(
        self, feature_BM: Tensor, preference_B: Tensor, group_B: Tensor, scored_B: Tensor,
        state: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """The weights after a step of the policy, moved once every `every` steps."""
        steps, weights = state["steps"] + 1, state["weights"]
        if steps % self.every == 0:
            found = PreferredPairs.of(feature_BM, preference_B, group_B, scored_B, weights)
            gradient = found.explicit() + self.decay * weights
            if self.beta:
                gradient = gradient + found.implicit() / self.beta
            weights = weights - self.lr * gradient
        return {"weights": weights, "steps": steps}
