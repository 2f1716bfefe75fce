"""Policy optimisation over plain rollouts and rollouts with a hint as long as is needed."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.scale.weigh_by_help import WeighByHelp
from strop.parts.advantage.weight.temper_hint_tokens import TemperHintTokens
from strop.parts.rollout.sample_with_hints import SampleWithHints
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo)
def adhint(
    *,
    # Share of a prompt's rollouts that get a hint.
    hinted: float = 0.5,
    # Share of the solution that a prompt gets which is always solved.
    w_min: float = 0.1,
    # Share of the solution that a prompt gets which is never solved.
    w_max: float = 0.9,
    # Deviation of the noise on the share.
    noise: float = 0.0,
    # How much more success without help, and failure with it, can count.
    strength: float = 1.0,
    # Whether hint tokens weigh less the less their entropy is like the continuation's.
    by_entropy: bool = True,
    # Whether hint tokens of bad rollouts get no gradient.
    never_unlearn: bool = True,
    **parent: Any,
) -> Algorithm:
    """ADHint: Adaptive Hints with Difficulty Priors for Reinforcement Learning.

    arXiv 2512.13095. Code: none released. Parent: grpo. Status: abstract.

    Family: demonstrations.
    In short: hints as long as needed.
    Choose it when: prompts are too hard to start alone, reference solutions exist, and the part
    that is given should shrink as they become easier.
    Equation: hint share w = w_min + (w_max - w_min) (1 - mean R of the plain rollouts) + noise;
    A as grpo's, times a factor by help; on hint tokens times min(H_t, H) / max(H_t, H), 0 if A < 0.
    Differs from the parent: part of the rollouts begin with the data's column `completion`, whose
    tokens are trained on as well, gently.
    Differs from the paper: known from it are the two phases, the growth of w with difficulty, that
    hint tokens unlike in entropy weigh less, that bad rollouts do not unlearn them, and which
    results count more. All numbers, the shape of both weights and the noise are inferred: other
    parts can stand in for weigh_by_help and temper_hint_tokens.
    Try: hinted (0: grpo), w_min and w_max, strength (0).
    """
    algorithm = grpo(**parent)
    *scaled, spread = algorithm.advantage
    assert isinstance(spread.part, SpreadEvenly)
    rollout = SampleWithHints(hinted=hinted, ratios=(w_min, w_max), noise=noise)
    temper = TemperHintTokens(by_entropy, never_unlearn)
    return dataclasses.replace(
        algorithm,
        rollout=Use(rollout),
        advantage=(*scaled, Use(WeighByHelp(strength)), spread, Use(temper)),
    )
