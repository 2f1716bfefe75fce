"""Supervised fine-tuning that skips tokens which the model expects or is uncertain about."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.average.average_by_constant_length import AverageByConstantLength
from strop.parts.selection.keep_confident_errors import KeepConfidentErrors
from strop.recipes._base import with_policy
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.sft import sft


@door(parameters={"num_items_in_batch": "num_items"})
@inherits(sft)
def entropy_sft(
    *,
    # Share of an update's tokens that is trained on.
    q: float = 0.8,
    # Weight of the entropy, which excuses an error.
    c: float = 0.8,
    # Tokens of a whole batch: the sum is divided by the share q of them; 0: by the tokens trained
    # on.
    num_items: int = 0,
    **parent: Any,
) -> Algorithm:
    """Light-IF: Endowing LLMs with Generalizable Reasoning via Preview and Self-Checking (SFT).

    arXiv 2508.03178 (entropy-preserving cold start). Code: Qihoo360/Light-IF. Parent: sft.
    Status: exact.

    Family: demonstrations.
    In short: learns only confident mistakes.
    Choose it when: fine-tuning prepares reinforcement learning and should not use up the entropy
    that exploration will need.
    Equation: d_t = -logp_t - c H_t; loss = -mean of logp over the max(int(q N), 1) tokens of
    largest d, of the N of an update; with num_items their sum over int(q num_items).
    Differs from the parent: tokens that the model knows, or where it is uncertain, are not trained
    on, so that more entropy is left for reinforcement learning.
    Differs from the paper: no; its code selects on each device, here over the update (the number
    that it divides by there, a count of the whole batch, is then the number of kept tokens).
    Defaults are the published command's (the code's own: q 0.2, c 1).
    Try: q (1: the parent), c.
    """
    algorithm = with_policy(sft(**parent), on=Use(KeepConfidentErrors(q, c)))
    if not num_items:
        return algorithm
    length = max(int(num_items * q), 1)
    return with_policy(algorithm, average=Use(AverageByConstantLength(length, per_rollout=False)))
