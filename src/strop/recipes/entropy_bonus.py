"""Group relative policy optimisation with a fixed entropy bonus."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.method.schedule import Schedule
from strop.parts.loss.penalty.reward_entropy import RewardEntropy
from strop.parts.selection.keep_high_entropy_tokens import KeepHighEntropyTokens
from strop.recipes._base import average, check_choice, with_policy
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@door(parameters={"entropy_coef": "coef", "entropy_coeff": "coef", "top_entropy_quantile": "rho"})
@inherits(grpo)
def entropy_bonus(
    *,
    # Weight of the entropy, reward per nat; may change over the run.
    coef: float | Schedule = 0.001,
    # How entropies are averaged: "trl" (over tokens) or "verl" (as the policy's loss).
    framework: str = "trl",
    # Share of the tokens, by entropy, that the policy and the bonus are trained on.
    rho: float = 1.0,
    aggregation: str = "seq-mean-token-mean",
    **parent: Any,
) -> Algorithm:
    """Entropy regularisation as in TRL and verl.

    arXiv 1602.01783, sec. 4 (the bonus). Code: huggingface/trl, verl-project/verl. Parent: grpo.
    Status: exact.

    Family: entropy.
    In short: fixed entropy bonus.
    Choose it when: entropy collapses, a first simple remedy will do, and you will set one
    coefficient by trial.
    Equation: loss = grpo's - coef agg(H_t), H_t = -sum_v q_v log q_v with gradient; agg is the
    mean over tokens (trl), or the aggregation of the policy's loss (verl).
    Differs from the parent: the entropy term (none at coef 0).
    Differs from the paper: the bonus is per generated token, in the paper per action. Both
    frameworks leave it off by default (verl's was 0.001 once); 0.002 has been reported to be too
    much for a long run. With rho below 1, trl's masked form: the bonus is over the kept tokens
    alone.
    Try: coef (linear(0.002, 0)), framework ("verl" with aggregation "seq-mean-token-sum": the
    same coefficient is then as many times stronger as answers are long).
    """
    check_choice("entropy_bonus", ("trl", "verl"), framework=framework)
    algorithm = grpo(aggregation=aggregation, **parent)
    mean = average("token-mean" if framework == "trl" else aggregation)
    kept = None
    if rho < 1:
        algorithm = with_policy(algorithm, on=Use(KeepHighEntropyTokens(rho, normaliser="full")))
        kept = Use(KeepHighEntropyTokens(rho))
    bonus = Term("entropy", Use(RewardEntropy()), mean, on=kept, coef=coef)
    return dataclasses.replace(algorithm, terms=(*algorithm.terms, bonus))
