"""Learn unlikely tokens of somebody else's answer faster than likely ones, or slower."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.method.part import Result, require, require_one_of


@dataclass(frozen=True)
class ShapeByLikelihood:
    """Tokens that no policy of ours drew are weighed by a function of their probability p.

        objective_t = A_t * f(p_t);   p = exp(logp)
        "hyperbolic": f = p / (p + gamma), token weight gamma p / (p + gamma)^2
        "power": f = p^gamma;   "p_logp": f = p + gamma logp, token weight p + gamma

    The probability under whoever wrote them is taken as 1. No clip.

    Reads: logp_T [T] float, advantage_T [T] float.   Writes: objective_T [T] float.
    Source: arXiv 2504.14945 (policy shaping); code TsinghuaC3I/Unify-Post-Training.
    Differs from the source: no; its form with known target probabilities is left out.
    Nearest part: follow_advantage, which weighs every token alike, likely or not.
    Edges: advantage 0 -> objective 0; p -> 0 -> no gradient, except gamma's in p_logp.
    """

    scope: ClassVar[str] = "token"
    facts: ClassVar[frozenset[str]] = frozenset({"silent_at_zero_advantage"})
    # hyperbolic, power or p_logp. Default: released code.
    shape: str = "hyperbolic"
    # Half-way probability of the hyperbola, exponent of the power, weight of the logp. Default:
    # released code.
    gamma: float = 0.1

    def __post_init__(self) -> None:
        require_one_of(self, "shape", ("hyperbolic", "power", "p_logp"))
        require(self, "gamma", low=1e-6)

    def __call__(self, logp_T: Tensor, advantage_T: Tensor) -> Result:
        p_T = logp_T.exp()
        if self.shape == "hyperbolic":
            shape_T, weight_T = p_T / (p_T + self.gamma), self.gamma * p_T / (p_T + self.gamma) ** 2
        elif self.shape == "p_logp":
            shape_T, weight_T = p_T + self.gamma * logp_T, p_T + self.gamma
        else:
            shape_T = (self.gamma * logp_T).exp()
            weight_T = self.gamma * shape_T
        metrics = {"shaping/weight_mean": weight_T.detach()}
        return Result(advantage_T * shape_T, metrics=metrics)
