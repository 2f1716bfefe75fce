"""Scales a turn's advantage by its certainty, and adds a bonus for a certain next turn."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.credit.spread_turns import SpreadTurns
from strop.parts.advantage.weight.modulate_turns_by_entropy import ModulateTurnsByEntropy
from strop.parts.rollout.play_turns import PlayTurns
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@door(tensors={"turns": ("turn_index", None)})
@inherits(grpo)
def empg(
    *,
    # How fast a turn's weight falls with its entropy.
    k: float = 1.0,
    # How fast the bonus falls with the next turn's entropy.
    k_prime: float = 1.0,
    # Weight of the bonus.
    zeta: float = 0.1,
    **parent: Any,
) -> Algorithm:
    """Harnessing Uncertainty: Entropy-Modulated Policy Gradients for Long-Horizon LLM Agents.

    arXiv 2509.09265. Code: none of the authors'; WillDreamer/ARL-Arena. Parent: grpo.
    Status: partial.

    Family: turns.
    In short: confident turns weigh more.
    Choose it when: only outcomes are rewarded, the environment does not identify states, and the
    policy's own certainty is the only hint at which turns mattered.
    Equation: h = turn entropies scaled to [0, 1] over the step; A_{i,k} = A_i exp(-k h_{i,k}) /
    mean exp(-k h) + zeta exp(-k_prime h_{i,k+1}), minus its mean over all turns.
    Differs from the parent: every turn has its own advantage, larger the more certain it was; a
    bonus for a certain next turn, in failed episodes too.
    Differs from the paper: its values of zeta were not found: 0.1 is from a listing of its
    equations, 0.05 from another implementation. Extremes and means are over the step.
    Try: zeta, k (0 with zeta 0: the parent's advantages, centred over turns), num_rollouts.
    """
    algorithm = grpo(**parent)
    turns = (Use(ModulateTurnsByEntropy(k, zeta, k_prime)), Use(SpreadTurns()))
    return dataclasses.replace(
        algorithm, rollout=Use(PlayTurns()), advantage=(*algorithm.advantage[:-1], *turns)
    )
