"""Learning only from rollouts that did worse than their peers."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.scale.weigh_signs import WeighSigns
from strop.parts.selection.keep_large_advantages import KeepLargeAdvantages
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo
from strop.recipes.gspo import gspo

SMALLEST = 1e-12  # size of an advantage that is not 0


def _negative(algorithm: Algorithm, count_dropped: bool) -> Algorithm:
    """The algorithm with advantages above 0 set to 0; such rows may leave the averages."""
    *scaled, spread = algorithm.advantage
    return dataclasses.replace(
        algorithm,
        advantage=(*scaled, Use(WeighSigns()), spread),
        selection=() if count_dropped else (Use(KeepLargeAdvantages(SMALLEST)),),
    )


@inherits(grpo)
def rlvr_two_stage_negative_gradients(
    *,
    # Whether rollouts without a negative advantage still count in averages.
    count_dropped: bool = True,
    **parent: Any,
) -> Algorithm:
    """The Debate on RLVR Reasoning Capability Boundary: Shrinkage, Expansion, or Both? (GRPO-N).

    arXiv 2510.04028. Code: none released. Parent: grpo. Status: partial.

    Family: baselines.
    In short: learns only from worse answers.
    Choose it when: pass@k falls as pass@1 rises: answers worse than the mean are pushed down and
    none is reinforced, so that other right answers survive.
    Equation: A_i <- min(A_i, 0), A of grpo; the loss is grpo's.
    Differs from the parent: rollouts better than their group's mean get no gradient. With rewards
    of 0 and 1 that is learning from wrong answers, weighted by the group's deviation.
    Differs from the paper: whether dropped rollouts count in the average was not found: they do, as
    in an unchanged loss (count_dropped).
    Try: count_dropped, num_rollouts, advantage.weigh_signs.positive (0.1 keeps a little
    reinforcement); watch pass@k at several k (`strop eval --k 1,8,64`) and entropy, which it is
    meant to hold up.
    """
    return _negative(grpo(**parent), count_dropped)


@inherits(gspo)
def gspo_n(
    *,
    # Whether rollouts without a negative advantage still count in averages.
    count_dropped: bool = True,
    **parent: Any,
) -> Algorithm:
    """The Debate on RLVR Reasoning Capability Boundary: Shrinkage, Expansion, or Both? (GSPO-N).

    arXiv 2510.04028. Code: none released. Parent: gspo. Status: partial.

    Family: baselines.
    In short: gspo, only from worse answers.
    Choose it when: pass@k falls as pass@1 rises and you train with one importance ratio per answer,
    as in gspo.
    Equation: A_i <- min(A_i, 0); the loss is gspo's.
    Differs from the parent: rollouts better than their group's mean get no gradient.
    Differs from the paper: as rlvr_two_stage_negative_gradients.
    Try: count_dropped, clip_low, num_rollouts.
    """
    return _negative(gspo(**parent), count_dropped)
