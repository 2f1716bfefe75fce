"""Hold the policy near a frozen reference, judged by the sampled tokens."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.method.part import Result, require_one_of
from strop.support.errors import UserError

CLAMP_NATS = 20.0


@dataclass(frozen=True)
class PenaliseKlToReference:
    """Tokens that became likelier or less likely than under the reference are pulled back.

        objective_t = -K(d_t), d = logp - logp_ref
        k1: d    abs: |d|    k2: d^2 / 2    k3: exp(-d) + d - 1
        "k1+", "abs+", "k3+": that value with the gradient of k2
        bias_corrected: times rho = exp(logp - logp_old), gradient through rho too

    Reads: logp_T [T] float, logp_ref_T [T] float, logp_old_T [T] float where bias_corrected.
    Writes: objective_T [T] float (nats).
    Source: arXiv 2402.03300, eq. 4 (k3); code only: verl-project/verl core_algos.py (the others),
    huggingface/trl grpo_trainer.py (bias_corrected).
    Differs from the source: in k3 and rho the difference is clamped to +-20 nats against overflow,
    as verl does; verl's second clamp (the result to +-10) is left out.
    Nearest part: penalise_full_kl_to_reference, which sums over the vocabulary.
    Edges: logp = logp_ref -> 0; beyond the clamp k3 has gradient 0; the reference gets none.
    """

    scope: ClassVar[str] = "token"
    # Which estimator. Default: paper (eq. 4), and verl's and TRL's.
    estimator: str = "k3"
    # Weigh by the importance ratio, gradient included. Default: ours (off, as in the paper).
    bias_corrected: bool = False

    def __post_init__(self) -> None:
        require_one_of(self, "estimator", ("k1", "abs", "k2", "k3", "k1+", "abs+", "k3+"))

    def __call__(
        self, logp_T: Tensor, logp_ref_T: Tensor, logp_old_T: Tensor | None = None
    ) -> Result:
        difference_T = logp_T - logp_ref_T.detach()
        kl_T = _estimate(difference_T, self.estimator.rstrip("+"))
        if self.estimator.endswith("+"):
            squared_T = _estimate(difference_T, "k2")
            kl_T = kl_T.detach() + squared_T - squared_T.detach()
        value_T = kl_T.detach()
        if self.bias_corrected:
            if logp_old_T is None:
                raise UserError("penalise_kl_to_reference.bias_corrected needs logp_old_T")
            log_ratio_T = (logp_T - logp_old_T.detach()).clamp(-CLAMP_NATS, CLAMP_NATS)
            kl_T = kl_T * log_ratio_T.exp()
        return Result(-kl_T, metrics={"kl": value_T})


def _estimate(difference_T: Tensor, estimator: str) -> Tensor:
    if estimator == "k1":
        return difference_T
    if estimator == "abs":
        return difference_T.abs()
    if estimator == "k2":
        return difference_T.square() / 2
    clamped_T = difference_T.clamp(-CLAMP_NATS, CLAMP_NATS)
    return (-clamped_T).expm1() + clamped_T  # exp(-d) - 1 would round small d away
