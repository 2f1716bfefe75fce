"""Policy optimisation over plain rollouts and rollouts that start from a hint of adaptive size."""

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
    # Share of the solution shown for a prompt that is always solved.
    w_min: float = 0.1,
    # Share of the solution shown for a prompt that is never solved.
    w_max: float = 0.9,
    # Standard deviation of the noise on the share.
    noise: float = 0.0,
    # How much more success without a hint, and failure with one, can count.
    strength: float = 1.0,
    # Whether hint tokens weigh less, the less their entropy resembles the continuation's.
    by_entropy: bool = True,
    # Whether hint tokens of bad rollouts get no gradient.
    never_unlearn: bool = True,
    **parent: Any,
) -> Algorithm:
    """ADHint: Adaptive Hints with Difficulty Priors for Reinforcement Learning.

    arXiv 2512.13095. Code: none released. Parent: grpo. Status: abstract.

    Family: demonstrations.
    In short: hint length set by difficulty.
    Choose it when: prompts are too hard to solve without help, reference solutions exist, and the
    part shown as a hint should shrink as they become easier.
    Equation: hint share w = w_min + (w_max - w_min) (1 - mean R of the plain rollouts) + noise;
    A as grpo's, times a factor by help; on hint tokens times min(H_t, H) / max(H_t, H), 0 if A < 0.
    Differs from the parent: part of the rollouts start with the beginning of the data's column
    `completion`, whose tokens are trained on as well, with smaller weights.
    Differs from the paper: it gives only the two phases, the growth of w with difficulty, that hint
    tokens of different entropy weigh less, that bad rollouts do not unlearn them, and which results
    count more. All numbers, the shape of both weights and the noise are inferred: other parts can
    replace weigh_by_help and temper_hint_tokens.
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
