"""Measure how likely the sampled token is once the implausible ones are cut."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch.batch import Batch
from strop.batch.columns import Column
from strop.method.part import require
from strop.method.services import Scoring


@dataclass(frozen=True)
class ScorePlausibleTokens:
    """Later parts see which tokens were plausible, and how likely among the plausible ones.

        logp_proxy_t = log(p_t / sum of p_v over p_v > kappa max p) if p_t > kappa max p, else -1e4

    p is the policy at the start of the step, which drew the tokens, at the sampling temperature.
    One forward pass over the step's rollouts.

    Reads: batch (the token ids), scoring.
    Writes: logp_proxy_T [T] float (nats).
    Source: arXiv 2510.03222, eq. 5 (the proxy).
    Differs from the source: the released code cuts before it divides by the temperature.
    Nearest part: none.
    Edges: kappa 0 -> the policy's own log-probability; the likeliest token is never cut.
    """

    writes: ClassVar[tuple[str, ...]] = ("logp_proxy_T",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "logp_proxy_T",
            "float",
            "under the policy without implausible tokens",
            "nats",
            random="logp",
        ),
    )
    # Tokens up to this share of the largest probability are cut. Default: paper.
    kappa: float = 0.02

    def __post_init__(self) -> None:
        require(self, "kappa", low=0.0, high=0.999)

    def __call__(self, batch: Batch, scoring: Scoring) -> Tensor:
        name = f"min_p_logp_{float(self.kappa) + 0.0!r}_T"  # 0.0, not -0.0
        column_T: Tensor = scoring.score(batch, "current", (name,))[name]
        return column_T
