"""Preference optimisation between a text's own continuation and the policy's."""

import dataclasses
from typing import Any

from strop.algorithm import Algorithm
from strop.curation.replace_failed_with_demonstrations import ReplaceFailedWithDemonstrations
from strop.errors import UserError
from strop.loss.bound.follow_log_likelihood import FollowLogLikelihood
from strop.part import Use
from strop.probe.pair_best_with_worst import PairBestWithWorst
from strop.recipes._base import around, average, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.dpo import dpo
from strop.recipes.luffy_shaping import EVERY_GROUP
from strop.selection.keep_preferred import KeepPreferred


@inherits(dpo)
def self_improving_pretraining(
    *,
    # "dpo": the best over the worst; "nll": likelihood of the best alone.
    objective: str = "dpo",
    # Whether the data's own continuation is a candidate too.
    suffix: bool = True,
    num_prompts: int = 32,
    # Candidates of the policy.
    num_rollouts: int = 16,
    **parent: Any,
) -> Algorithm:
    """Self-Improving Pretraining: using post-trained models to pretrain better models.

    arXiv 2601.21343, sec. 2. Code: none released. Parent: dpo. Status: partial.

    Family: demonstrations.
    In short: continuations against the text.
    Choose it when: the data is plain text and a judge can tell whether the policy's continuation
    beats the original one.
    Equation: candidates of a prefix: num_rollouts continuations of the policy and the data's own
    (column `completion`); the one of largest reward is chosen, that of the smallest rejected; loss
    = dpo's over these pairs, or -mean_t logp_t of the chosen (RF-NLL).
    Differs from the parent: the policy answers itself, and rewards make the pairs.
    Differs from the paper: 1. a rewritten continuation is no candidate, unless it is `completion`;
    2. rewards are the run's reward functions: a judge that compares can compare with the column
    `completion` (the paper's variant of one pivot); 3. beta is inferred (not stated: dpo's); the
    reference is the starting model. Lengths: rollout.max_tokens (paper: 128 tokens).
    Try: objective, num_rollouts (1 from scratch), suffix (false).
    """
    if objective not in ("dpo", "nll"):
        raise UserError(f"self_improving_pretraining's objective is dpo or nll, not {objective!r}")
    pairs = objective == "dpo"
    algorithm = dpo(**parent)
    if not pairs:
        imitate = {"objective": Use(FollowLogLikelihood()), "average": average("token-mean")}
        algorithm = with_policy(algorithm, **imitate)
    beside = ReplaceFailedWithDemonstrations(EVERY_GROUP, replaces=False)
    return dataclasses.replace(
        algorithm,
        **around(num_prompts, num_rollouts),
        curation=(Use(beside),) if suffix else (),
        probes=(Use(PairBestWithWorst(ties_count=not pairs)),),
        selection=(Use(KeepPreferred(rejected=pairs)),),
    )
