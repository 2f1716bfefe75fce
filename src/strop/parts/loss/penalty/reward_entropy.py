"""Keep the next-token choice open."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.method.part import Result, require
from strop.method.schedule import Schedule
from strop.support.errors import UserError


@dataclass(frozen=True)
class RewardEntropy:
    """The policy is paid for spreading its probability; a positive coefficient raises entropy.

        objective_t = entropy_t, and with a corridor: - smooth * alpha * P_t
        P_t = relu(corridor[0] * past - entropy_t) + relu(entropy_t - corridor[1] * past)

    With a corridor, tokens that leave the surroundings of the run's past pay; past is the mean
    entropy of the steps so far, as carry_metric_forward sets it.

    Reads: entropy_T [T] float.   Writes: objective_T [T] float (nats).
    Source: code only: huggingface/trl:trl/trainer/grpo_trainer.py, verl-project/verl
    workers/utils/losses.py; corridor arXiv 2509.22576, eq. 2 to 5.
    Differs from the source: no; the term's average chooses between their normalisers (TRL: always
    average_over_tokens; verl: the policy term's). The penalty of the corridor's released code is a
    constant, without gradient.
    Nearest part: penalise_full_kl_to_reference; equal gradient when the reference is uniform.
    Edges: masked tokens ignored; no past yet (below 0) -> P = 0; at a corridor's edge its gradient
    is 0.
    """

    scope: ClassVar[str] = "token"
    # Lower and upper edge of the corridor, factors of the past; empty: none. Default: released
    # code (none; arXiv 2509.22576 has 0 and 2 and recommends 0.5 and 1.5).
    corridor: tuple[float, ...] = ()
    # Mean entropy of the steps so far, nats; below 0: none yet. Default: ours.
    past: float | Schedule = 0.5
    # Weight of the penalty. Default: paper (ScienceWorld; 0.1 on ALFWorld).
    alpha: float = 0.05
    # Further weight, which may change over the run. Default: ours (constant).
    smooth: float | Schedule = 1.0

    def __post_init__(self) -> None:
        require(self, "past")
        require(self, "alpha", "smooth", low=0.0)
        edges = self.corridor
        if edges and not (len(edges) == 2 and 0 <= edges[0] <= edges[1]):
            raise UserError(
                f"reward_entropy.corridor must be (lower, upper) factors, or empty: {edges}"
            )

    @property
    def unlogged(self) -> frozenset[str]:
        """The metric of tokens outside the corridor, where there is none."""
        return frozenset() if self.corridor else frozenset({"epo/outside_mean"})

    def __call__(self, entropy_T: Tensor) -> Result:
        assert not isinstance(self.past, Schedule)
        assert not isinstance(self.smooth, Schedule)
        if not self.corridor:
            return Result(entropy_T)
        if self.past < 0:
            return Result(entropy_T, metrics={"epo/outside_mean": entropy_T.detach() * 0})
        low, high = (factor * self.past for factor in self.corridor)
        excess_T = (low - entropy_T).relu() + (entropy_T - high).relu()
        metrics = {"epo/outside_mean": (excess_T > 0).to(entropy_T.dtype)}
        return Result(entropy_T - self.smooth * self.alpha * excess_T, metrics=metrics)
