"""Training on the rollouts that differ most, and on their tokens that matter most."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.method.schedule import Linear, Schedule
from strop.parts.selection.keep_high_entropy_tokens import KeepHighEntropyTokens
from strop.parts.selection.keep_spread_advantages import KeepSpreadAdvantages
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, aggregation="token-mean")
def d3s(
    *,
    # Share of the rollouts that is trained on; may be scheduled over the run.
    rollout_share: float | Schedule = Linear(0.5, 1.0),  # noqa: B008 (frozen)
    # Share of their tokens that is trained on; may be scheduled over the run.
    token_share: float | Schedule = Linear(0.2, 1.0),  # noqa: B008 (frozen)
    # Rollouts are chosen from all of the "step", or from each "group".
    scope: str = "step",
    # The average is over the "kept" tokens, or over all of the kept rollouts, "full".
    normaliser: str = "kept",
    **parent: Any,
) -> Algorithm:
    """Learning More with Less: A Dynamic Dual-Level Down-Sampling Framework for Efficient PO (D3S).

    arXiv 2509.22115. Code: none released. Parent: grpo. Status: partial.

    Family: credit.
    In short: most informative rollouts, tokens.
    Choose it when: sampling is cheap and updates are expensive: early in the run only the most
    informative rollouts and tokens should be trained on.
    Equation: rollouts: argmax over subsets of N of Var(A), A of grpo over all rollouts; tokens:
    the top K share by |A| H; N and K grow on a line over the run.
    Differs from the parent: only those rollouts, and those tokens of them, are trained on.
    Differs from the paper: its four constants were not found: shares from 0.5 and 0.2 to 1 are ours
    (it says that early on fewer than a fifth of the tokens are trained on); nor was its average
    found: here it is over what is kept. Ties go to the first rows.
    Try: rollout_share, token_share (1.0: rollouts alone), scope ("group").
    """
    rollouts = KeepSpreadAdvantages(rollout_share, scope)
    tokens = KeepHighEntropyTokens(token_share, "topk", normaliser, by_advantage=True)
    return dataclasses.replace(grpo(**parent), selection=(Use(rollouts), Use(tokens)))
