"""Preference optimisation between a text's own continuation and the policy's."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.curation.replace_failed_with_demonstrations import ReplaceFailedWithDemonstrations
from strop.parts.loss.bound.follow_log_likelihood import FollowLogLikelihood
from strop.parts.probe.add_pairwise_wins import AddPairwiseWins
from strop.parts.probe.pair_best_with_worst import PairBestWithWorst
from strop.parts.selection.keep_preferred import KeepPreferred
from strop.recipes._base import around, average, check_choice, with_policy
from strop.recipes._inherit import inherits, refuse_unused
from strop.recipes.dpo import dpo
from strop.recipes.luffy_shaping import EVERY_GROUP


@inherits(dpo)
def self_improving_pretraining(
    *,
    # "dpo": the best preferred to the worst; "nll": likelihood of the best alone.
    objective: str = "dpo",
    # Whether the data's own continuation is a candidate too.
    suffix: bool = True,
    # Column of the data with a rewritten continuation, a candidate too; "": there is none.
    rewrite: str = "",
    # Whether candidates are compared pair by pair, and the share that each wins is added.
    wins: bool = False,
    num_prompts: int = 32,
    # Candidates sampled from the policy.
    num_rollouts: int = 16,
    **parent: Any,
) -> Algorithm:
    """Self-Improving Pretraining: using post-trained models to pretrain better models.

    arXiv 2601.21343, sec. 2. Code: none released. Parent: dpo. Status: partial.

    Family: demonstrations.
    In short: policy's continuation vs the text.
    Choose it when: the data is plain text and a judge can tell whether the policy's continuation
    beats the original one.
    Equation: candidates of a prefix: num_rollouts continuations of the policy, the data's own
    (column `completion`) and a rewritten one (column `rewrite`); that of largest score is chosen,
    that of the smallest rejected; score = its reward, with `wins` + pairs won / pairs; loss = dpo's
    over these pairs, or -mean_t logp_t of the chosen (RF-NLL).
    Differs from the parent: the policy writes candidates itself, and rewards choose the pairs.
    Differs from the paper: 1. scores are the run's reward functions: one that judges pairs (`wins`,
    off by default) gets the other text in `opponent`, and no `opponent` where it scores one alone;
    2. rewritten texts are made beforehand (`suffix_rewriter` trains a model for them); 3. beta is
    inferred (not stated: dpo's); the reference is the initial model. The length is set by
    rollout.max_tokens (paper: 128 tokens).
    Try: objective, wins, num_rollouts (1 from scratch), suffix (false).
    """
    check_choice("self_improving_pretraining", ("dpo", "nll"), objective=objective)
    pairs = objective == "dpo"
    algorithm = dpo(**parent)
    if not pairs:
        unused = ("beta", "loss_type", "label_smoothing", "reference_weight")
        refuse_unused("self_improving_pretraining(objective='nll')", parent, dpo, *unused)
        imitate = {"objective": Use(FollowLogLikelihood()), "average": average("token-mean")}
        algorithm = with_policy(algorithm, **imitate)
    columns = (*(("completion",) if suffix else ()), *((rewrite,) if rewrite else ()))
    beside = tuple(
        Use(ReplaceFailedWithDemonstrations(EVERY_GROUP, replaces=False, column=column))
        for column in columns
    )
    compared = (Use(AddPairwiseWins()),) if wins else ()
    return dataclasses.replace(
        algorithm,
        **around(num_prompts, num_rollouts),
        curation=beside,
        probes=(*compared, Use(PairBestWithWorst(ties_count=not pairs))),
        selection=(Use(KeepPreferred(rejected=pairs)),),
    )
