"""Group relative policy optimisation that weighs prompts by their current rollouts."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.scale.favour_groups_with_long_successes import (
    FavourGroupsWithLongSuccesses,
)
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, beta=1e-3)
def adora(
    *,
    # "text" or "vision": how a prompt is treated whose answers are all right, or all wrong.
    variant: str = "text",
    # Reward above which an answer is right.
    correct_threshold: float = 0.5,
    # Factor on the advantages of the other prompts.
    lam: float = 0.1,
    # Factor on the advantages of prompts whose longest right answer is the longer one.
    amplification: float = 1.0,
    # Largest share of right answers at which a prompt gets that factor.
    tau: float = 1.0,
    # Length from which a wrong answer counts as cut off and is ignored; 0: none.
    max_len: int = 0,
    **parent: Any,
) -> Algorithm:
    """ADORA: Training Reasoning Models with Dynamic Advantage Estimation on RL.

    arXiv 2602.10019. Code: ShadeCloak/ADORA. Parent: grpo. Status: exact.

    Family: baselines.
    In short: prompts where long answers win.
    Choose it when: longer reasoning should be learned only from prompts whose right answers are the
    longer ones, judged afresh at each step.
    Equation: A_i <- w_g A_i; w_g = amplification if the longest right answer of the prompt is
    longer than the mean wrong one and its share of right answers is at most tau, else lam.
    Differs from the parent: the advantages of a prompt are multiplied by w_g, computed afresh at
    each step.
    Differs from the paper: the default is the released code's form: prompts of any difficulty
    (paper: tau 0.5), with an answer right from a reward of 1.01 of 3 in its text runs; max_len
    (there 4054 tokens, in vision 4094) is off. How prompts whose answers are all right or all wrong
    are treated differs between its folders (see variant).
    Try: tau (0.5), lam with amplification (1 and 2: the paper's text mode), max_len.
    """
    algorithm = grpo(**parent)
    *estimator, spread = algorithm.advantage
    weigh = FavourGroupsWithLongSuccesses(
        (amplification, lam), correct_threshold, max_len, tau, variant
    )
    return dataclasses.replace(algorithm, advantage=(*estimator, Use(weigh), spread))
