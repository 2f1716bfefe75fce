"""Bias and noise of estimators of the step towards a teacher, by enumeration of a token.

    python benchmarks/distillation_estimators.py [--vocabulary 50 --pairs 200 --distance 1 --k 5]

The policy q and the teacher p are softmaxes of random logits; the exact step is the gradient of
-KL(q || p) by q's logits. For each estimator, over all tokens of the vocabulary with their
probabilities: its expected step as the cosine with the exact one and as the size of the difference,
and its noise, the root of the trace of its covariance; both as shares of the exact step, medians
over pairs. The parts are strop's; `sum over k, as the sampled token's advantage` is what the name
says: a number of the position alone, whose expected step is 0 (radixark/miles#2362).
"""

import argparse
import statistics
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from strop.parts.advantage.credit.credit_reference_likelihood import CreditReferenceLikelihood
from strop.parts.loss.penalty.penalise_full_kl_to_reference import PenaliseFullKlToReference
from strop.parts.loss.penalty.penalise_kl_to_reference import PenaliseKlToReference

Step = Callable[[Tensor, Tensor], Tensor]  # logits and teacher's log-probabilities -> [tokens, V]


def by_credit(centre: bool) -> Step:
    """Each token's credit times the gradient of its log-probability."""

    def step(logits_V: Tensor, logp_V: Tensor) -> Tensor:
        logq_V = logits_V.log_softmax(0)
        kl_V = (logq_V.exp() * (logq_V - logp_V)).sum().expand_as(logq_V)
        rows = torch.arange(len(logq_V))
        part = CreditReferenceLikelihood(centre=centre)
        credit_V = part(logq_V, logp_V, torch.ones_like(rows).bool(), rows, None, kl_V).value
        return credit_V[:, None] * scores(logq_V)

    return step


def scores(logq_V: Tensor) -> Tensor:
    """Gradients [tokens, V] of each token's log-probability by the logits."""
    return torch.eye(len(logq_V), dtype=logq_V.dtype) - logq_V.exp()[None]


def by_loss(estimator: str) -> Step:
    """The gradient of the estimator of the drawn token, as a loss."""

    def step(logits_V: Tensor, logp_V: Tensor) -> Tensor:
        def objective(logits_V: Tensor) -> Tensor:
            return PenaliseKlToReference(estimator)(logits_V.log_softmax(0), logp_V).value

        found: Tensor = torch.func.jacrev(objective)(logits_V)
        return found

    return step


def by_distribution(**fields: object) -> Step:
    """The gradient of a divergence over the vocabulary: the same whichever token is drawn."""
    part = PenaliseFullKlToReference(**fields)  # type: ignore[arg-type]

    def step(logits_V: Tensor, logp_V: Tensor) -> Tensor:
        def objective(logits_V: Tensor) -> Tensor:
            return part(logits_V.log_softmax(0)[None], logp_V[None]).value.sum()

        return torch.func.grad(objective)(logits_V).expand(len(logits_V), -1)

    return step


def as_advantage(k: int) -> Step:
    """The divergence over the teacher's k likeliest tokens as the advantage of the drawn one."""
    part = PenaliseFullKlToReference(top_k=k)

    def step(logits_V: Tensor, logp_V: Tensor) -> Tensor:
        logq_V = logits_V.log_softmax(0)
        return part(logq_V[None], logp_V[None]).value * scores(logq_V)

    return step


def estimators(k: int) -> Mapping[str, Step]:
    return {
        "sampled token as credit (on_policy_distillation)": by_credit(False),
        "the same, centred (vopd)": by_credit(True),
        "k1 as a loss": by_loss("k1"),
        "k2 as a loss": by_loss("k2"),
        "k3 as a loss": by_loss("k3"),
        "whole vocabulary (gkd, reverse)": by_distribution(),
        f"teacher's {k} and a tail": by_distribution(top_k=k),
        f"teacher's {k}, renormalised": by_distribution(top_k=k, others="renormalise"),
        f"policy's {k} and a tail": by_distribution(top_k=k, top_of="current"),
        f"policy's {k}, renormalised": by_distribution(
            top_k=k, top_of="current", others="renormalise"
        ),
        f"sum over {k}, as the sampled token's advantage": as_advantage(k),
        "whole vocabulary, forward": by_distribution(divergence="forward"),
        "whole vocabulary, jensen_shannon": by_distribution(divergence="jensen_shannon"),
    }


def measure(step: Step, logits_V: Tensor, logp_V: Tensor, exact_V: Tensor) -> list[float]:
    """Cosine, bias and noise."""
    steps_YV, q_Y = step(logits_V, logp_V), logits_V.softmax(0)
    mean_V = q_Y @ steps_YV
    noise = (q_Y @ (steps_YV - mean_V).square().sum(1)).sqrt()
    cosine = torch.cosine_similarity(mean_V, exact_V, dim=0)
    return [float(x) for x in (cosine, (mean_V - exact_V).norm() / exact_V.norm(),
                               noise / exact_V.norm())]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--distance", type=float, default=1.0, help="of teacher's logits, nats")
    parser.add_argument("--k", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    found: dict[str, list[list[float]]] = {}
    for _ in range(options.pairs):
        logits_V = 2 * torch.randn(options.vocabulary, dtype=torch.float64)
        moved_V = options.distance * torch.randn(options.vocabulary, dtype=torch.float64)
        logp_V = (logits_V + moved_V).log_softmax(0)
        exact_V = by_distribution()(logits_V, logp_V)[0]
        for name, step in estimators(options.k).items():
            found.setdefault(name, []).append(measure(step, logits_V, logp_V, exact_V))
    print("| estimator | cosine | bias | noise |\n| --- | --- | --- | --- |")
    for name, rows in found.items():
        numbers = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"| {name} | " + " | ".join(f"{number:.3f}" for number in numbers) + " |")


if __name__ == "__main__":
    main()
