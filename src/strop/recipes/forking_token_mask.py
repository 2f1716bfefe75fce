"""Trains only on high-entropy tokens, at which an answer forks."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.selection.keep_high_entropy_tokens import KeepHighEntropyTokens
from strop.recipes._base import ESTIMATOR, with_policy
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.dapo import dapo
from strop.recipes.grpo import grpo


@inherits(
    dapo,
    without=(
        "dual_clip_c", "dynamic_sampling", "refill", "max_rounds",
        "overlong_buffer", "overlong_factor", "overlong_filter",
    ),
)  # fmt: skip
def forking_token_mask(
    *,
    # Share of the tokens that is kept.
    rho: float = 0.2,
    # "quantile" (a threshold) or "topk" (a count).
    selection: str = "quantile",
    # The average is over the "kept" tokens, or over all, "full".
    normaliser: str = "kept",
    **parent: Any,
) -> Algorithm:
    """Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective RL for LLM Reasoning.

    arXiv 2506.01939, eq. 6. Code: none of the authors' (TRL and others carry it). Parent: dapo.
    Status: exact.

    Family: credit.
    In short: only high-entropy tokens, on dapo.
    Choose it when: the gradient should go only to the fifth of the tokens with the highest entropy,
    at which an answer forks, with dapo's settings.
    Equation: tau = (1 - rho)-quantile of H over an update's tokens;
    loss = -1/K sum_{H_t >= tau} min(rho_t A, clip(rho_t) A), K the number of those tokens.
    Differs from the parent: tokens of lower entropy have no gradient and do not count.
    Differs from the paper: H is the entropy at the start of the step, equal to the current one
    while a step is one update; the quantile is over the update. A step has one update, not 16
    (`num_minibatches=16`), which took more time.
    Try: rho, normaliser ("full" is TRL's), selection.
    """
    masked = KeepHighEntropyTokens(rho, selection, normaliser)
    return with_policy(dapo(**parent), on=Use(masked))


@door(parameters={"top_entropy_quantile": "rho"})
@inherits(grpo, without=ESTIMATOR, aggregation="token-mean")
def top_entropy_quantile(
    *,
    # Share of the tokens that is kept.
    rho: float = 0.2,
    **parent: Any,
) -> Algorithm:
    """Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective RL (TRL's form).

    arXiv 2506.01939. Code: huggingface/trl (top_entropy_quantile). Parent: grpo. Status: exact.

    Family: credit.
    In short: only high-entropy tokens, on grpo.
    Choose it when: only high-entropy tokens should be trained on, with grpo's settings and TRL's
    average, in which the gradient shrinks with the kept share.
    Equation: loss = -1/N sum_{H_t >= tau} min(rho_t A, clip(rho_t) A), N all tokens, tau the
    (1 - rho)-quantile of H over an update's tokens; + beta KL(ref) on all tokens.
    Differs from the parent: tokens of lower entropy have no policy gradient but still count.
    Differs from the paper: the average is over all tokens, so the gradient is about rho times that
    of forking_token_mask. TRL's own default is rho 1 (off); 0.2 is what it recommends. A step has
    one update, not 16 (`num_minibatches=16`), which took more time.
    Try: rho, clip_high, beta.
    """
    masked = KeepHighEntropyTokens(rho, normaliser="full")
    return with_policy(grpo(**parent), on=Use(masked))
