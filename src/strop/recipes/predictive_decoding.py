"""Group relative policy optimisation over answers that look ahead before each chunk."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.rollout.look_ahead_by_chunks import LookAheadByChunks
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo)
def predictive_decoding(
    *,
    num_candidates: int = 8,
    chunk_tokens: int = 4,
    chunks_ahead: int = 2,
    select_temperature: float = 0.1,
    **parent: Any,
) -> Algorithm:
    """Non-myopic Generation of Language Models for Reasoning and Planning (Predictive-Decoding).

    arXiv 2410.17195. Code: chang-github-00/llm-predictive-decoding (MPC_Sample). Parent: grpo.
    Status: partial.

    Family: draws.
    In short: chunks chosen by lookahead.
    Choose it when: plain answers go wrong early and rarely earn a reward, the policy's own
    confidence identifies good beginnings, and sampling may cost many times as much.
    Equation: v_k = exp(mean log p) over candidate k's chunk and its continuation; the chunk kept ~
    softmax(v / select_temperature); grpo's loss on the answers.
    Differs from the parent: each chunk of an answer is chosen from candidates. The choice has no
    known probability: logp_behavior_T is void, importance weights from it are 1, ratios are over
    the old policy's probability of the tokens; so the gradient is computed on the answers of a
    sharper policy.
    Differs from the paper: this is what its code runs, but 1. there nothing is trained; 2. chunks
    are of tokens, there lines; 3. only the chosen one of earlier candidates is continued; 4. no
    threshold on v; 5. temperature 1, there 0.7.
    Try: chunk_tokens (32), num_candidates (4), select_temperature (0).
    """
    rollout = LookAheadByChunks(
        num_candidates=num_candidates,
        chunk_tokens=chunk_tokens,
        chunks_ahead=chunks_ahead,
        select_temperature=select_temperature,
    )
    return dataclasses.replace(grpo(**parent), rollout=Use(rollout))
