"""A bonus for answers whose hidden states spread wider, or ever faster, than usual."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.weight.add_capped_bonus import AddCappedBonus
from strop.parts.advantage.weight.rate_state_ranks import RateStateRanks
from strop.parts.probe.measure_state_ranks import MeasureStateRanks
from strop.recipes._base import check_choice, entropy_terms
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, num_rollouts=4, beta=1e-3)
def verl_erank(
    *,
    # Tokens from one prefix to the next, and the last tokens of which prefixes are taken.
    stride: int = 40,
    window: int = 512,
    # How sharply the acceleration of the rank decides between rank and speed.
    gain: float = 2.0,
    # Update rate of the running means that rollouts are compared with.
    rate: float = 0.3,
    # The bonus is at most the advantage's size divided by this.
    kappa: float = 2.0,
    # Whether the bonus shrinks as rewards, of -1 to 1, grow.
    by_score: bool = False,
    # Tokens with the bonus: "all", or "last" (released code).
    tokens: str = "all",
    # Weight of the entropy bonus, per nat; 0: none.
    entropy_coef: float = 1e-3,
    **parent: Any,
) -> Algorithm:
    """Beyond the Exploration-Exploitation Trade-off: A Hidden State Approach for LLM Reasoning.

    arXiv 2509.23808. Code: hf618/VERL. Parent: grpo. Status: exact.

    Family: entropy.
    In short: bonus by hidden-state rank.
    Choose it when: exploration should be measured in an answer's hidden states instead of its token
    entropy, and a forward pass to read them is affordable.
    Equation: A' = A + min(relu(Phi), |A| / kappa), Phi = b tanh(dev ER) + (1 - b) tanh(dev ERV),
    b = sigmoid(gain dev ERA); ER the effective rank of a rollout's states, ERV and ERA the mean
    gain of it over prefixes and how that changes; dev the relative distance from the usual.
    Differs from the parent: the bonus, and one for entropy; a forward pass for the states.
    Differs from the paper: this is the released code's formula (the equations were not read), which
    puts the bonus on the last token only (tokens "last"); its script computes none, since the bonus
    depends on an option that it switches off. Means start at 0, so early bonuses are large.
    Try: kappa, tokens, stride (short answers need a small one: below 2 stride tokens ERV is 0).
    """
    check_choice("verl_erank", ("all", "last"), tokens=tokens)
    algorithm = grpo(**parent)
    rating = Use(RateStateRanks(gain, rate, by_score, last_token=tokens == "last"))
    bonus = Use(AddCappedBonus(1.0, kappa), columns=(("bonus_T", "bonus_T"),))
    return dataclasses.replace(
        algorithm,
        probes=(Use(MeasureStateRanks(stride, window)),),
        advantage=(*algorithm.advantage, rating, bonus),
        terms=(*algorithm.terms, *entropy_terms(entropy_coef)),
    )
