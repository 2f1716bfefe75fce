"""Holds the entropy of uncertain tokens, over likely candidates only, at its initial value."""

import dataclasses
from typing import Any

import torch

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.method.schedule import EntropyTarget
from strop.parts.control.carry_metric_forward import CarryMetricForward
from strop.parts.loss.penalty.pull_nucleus_entropy import PullNucleusEntropy
from strop.recipes._base import average, check_choice
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@door(tensors={"probs": ("logits", torch.log)})
@inherits(
    grpo, without=("eps", "std", "normalize_std"), num_rollouts=8, clip_low=0.28, clip_high=0.28,
    aggregation="seq-mean-token-sum-norm",
)  # fmt: skip
def siren(
    *,
    # Probability mass of the nucleus of the vocabulary.
    top_p: float = 0.8,
    # Tokens at or below this quantile of their answer's entropy do not count.
    quantile: float = 0.8,
    # Weight of the squared distance, reward per nat^2.
    coef: float = 0.005,
    # Value at which the mean is held, nats, or a schedule of it; below 0: that of the first step.
    # It is the metric siren/entropy, which lies above the policy's mean entropy.
    anchor: EntropyTarget = -1.0,
    # "anchor" (squared distance) or "up" (a bonus on the mean).
    pull: str = "anchor",
    # "paper", or "code": a nucleus without the token that crosses top_p.
    variant: str = "paper",
    **parent: Any,
) -> Algorithm:
    """Rethinking Entropy Regularization in Large Reasoning Models (SIREN).

    arXiv 2509.25133. Code: Linn3a/siren. Parent: grpo. Status: exact.

    Family: entropy.
    In short: holds entropy of likely tokens.
    Choose it when: an ordinary bonus spreads probability over nonsense: only likely tokens at
    uncertain positions should count, with their entropy held at its initial value.
    Equation: loss = grpo's + coef (Hbar - anchor)^2; Hbar = mean over answers of the mean of Hp_t
    over the answer's tokens above its quantile of Hp; Hp_t = entropy of the renormalised nucleus
    of mass top_p; anchor = Hbar at the first step, before its update.
    Differs from the parent: the entropy term; advantages without division by the deviation; a
    wider clip; tokens are summed and divided by a constant.
    Differs from the paper: this is its repository's form; Hbar is over the update, there over a
    micro-batch. With several updates a step, the first step's mean over them is the anchor. A step
    has one update, not 16 (`num_minibatches=16`), which took more time.
    Try: coef, anchor (points(((0, 1.0), (0.5, 0.7), (1, 0.7)))), quantile, top_p.
    """
    check_choice("siren", ("paper", "code"), variant=variant)
    part = PullNucleusEntropy(anchor, top_p, quantile, pull, below=variant == "code")
    pulled = Term("entropy", Use(part), average("token-mean"), coef=coef)
    measured = pull == "anchor" and isinstance(anchor, float | int) and anchor < 0
    carry = CarryMetricForward("terms.entropy.objective.anchor", "siren/entropy", "first")
    algorithm = grpo(normalize_std=False, **parent)
    return dataclasses.replace(
        algorithm, terms=(*algorithm.terms, pulled), control=(Use(carry),) if measured else ()
    )
