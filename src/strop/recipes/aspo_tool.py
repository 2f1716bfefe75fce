"""Policy optimisation that favours right answers which turn to code early."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.weight.favour_early_marker import FavourEarlyMarker
from strop.parts.probe.find_marker import FindMarker
from strop.recipes._inherit import inherits
from strop.recipes.dapo import dapo


@inherits(dapo)
def aspo_tool(
    *,
    # Strength; below 0 favours early code. The paper's aggressive setting is -2.5.
    delta: float = -2.0,
    # Largest change, as a share of the advantage. The paper's aggressive setting is 0.9.
    kappa: float = 0.7,
    # Text with which code begins.
    marker: str = "```python",
    # Outcome from which an answer is right.
    success: float = 1.0,
    **parent: Any,
) -> Algorithm:
    """Understanding Tool-Integrated Reasoning (Advantage Shaping Policy Optimization).

    arXiv 2508.19201. Code: none released. Parent: dapo. Status: exact.

    Family: turns.
    In short: right answers gain by early code.
    Choose it when: right answers write code too late to profit from it, and the reward itself
    should stay the outcome alone.
    Equation: A_i <- A_i + clip(delta (p_i - mean_E p) / mean_E L, +- kappa |A_i|) for i in E, the
    right rollouts of the group that wrote code, p_i the tokens before its first, L their lengths.
    Differs from the parent: the advantage of right answers grows with how early they write code;
    the reward is unchanged.
    Differs once: `'aspo_tool(marker="*")'`, a marker that the model writes (marker/frac_rollouts >
    0).
    Differs from the paper: it does not say which text begins code (marker is ours); a figure there
    gives other numbers (delta 1.5 and 2.0) than its text. It runs code during the answer: for that,
    set rollout to play_turns with an environment that does so; in one turn, code is only written.
    Try: delta, kappa (0.9), marker ("<code>").
    """
    algorithm = dapo(**parent)
    return dataclasses.replace(
        algorithm,
        probes=(*algorithm.probes, Use(FindMarker(marker))),
        advantage=(*algorithm.advantage, Use(FavourEarlyMarker(delta, kappa, success))),
    )
