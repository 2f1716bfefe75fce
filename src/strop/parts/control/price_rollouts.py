"""Learn what a number of rollouts is worth in each class of difficulty, and what it costs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from strop.method.part import Result, require, require_one_of
from strop.parts.control._bins import losses_of


@dataclass(frozen=True)
class PriceRollouts:
    """A bandit in each class tries numbers of rollouts and remembers the class's loss with each.

        for each class b with n_b rollouts per prompt and mean loss l_b:
            paper: s_b(n_b) <- s_b(n_b) - l_b - mu n_b
            code:  s_b(n_b) <- s_b(n_b) + l_b - mu (n_b - target)
        mu <- mu + rate (rollouts given per prompt - target)

    Metric: bins/price (mu).

    Reads: metrics (bins/loss_{n}, bins/share_{n}, bins/rollouts_{n}, budget/target, budget/spent),
    state.   Writes: the knob sampling.allocate_by_bins.scores.
    Source: arXiv 2601.19280 (rollout budget); code kishanpb/verl-gdro (group_dro_grpo.py).
    Differs from the source: no; its code rewards the opposite side of the loss.
    Nearest part: raise_scores_of_bins.
    Edges: a class without a rollout keeps its scores; the state is in the checkpoint.
    """

    moves: ClassVar[tuple[str, ...]] = ("sampling.allocate_by_bins.scores",)
    equals: ClassVar[dict[str, str]] = {
        name: f"sampling.allocate_by_bins.{name}" for name in ("least", "most")
    }
    # Classes. Default: released code (two edges).
    num_bins: int = 3
    # Fewest rollouts of a prompt. Default: released code (2).
    least: int = 2
    # Most rollouts of a prompt. Default: released code (three times the mean of 4).
    most: int = 12
    # Step of the price. Default: released code (0.05).
    rate: float = 0.05
    # Which side of the loss is rewarded: "paper" or "code". Default: paper.
    source_form: str = "paper"

    def __post_init__(self) -> None:
        require(self, "num_bins", "least", low=1)
        require(self, "most", low=self.least)
        require(self, "rate", low=0.0)
        require_one_of(self, "source_form", ("paper", "code"))

    def init(self) -> dict[str, Any]:
        """The initial state: nothing is tried, and the price is 0."""
        arms = self.most - self.least + 1
        return {"scores": (0.0,) * (self.num_bins * arms), "price": 0.0}

    def __call__(self, metrics: Mapping[str, float], state: Mapping[str, Any]) -> Result:
        scores, price = list(state["scores"]), state["price"]
        target = metrics["budget/target"]
        for b, (loss, _) in losses_of(metrics, self.num_bins).items():
            num = round(metrics[f"bins/rollouts_{b}"])
            if self.least <= num <= self.most:
                place = b * (self.most - self.least + 1) + num - self.least
                scores[place] += (
                    loss - price * (num - target)
                    if self.source_form == "code"
                    else -loss - price * num
                )
        price += self.rate * (metrics["budget/spent"] - target)
        found = tuple(scores)
        return Result({self.moves[0]: found}, {"scores": found, "price": price},
                      {"bins/price": price})  # fmt: skip
