"""Crediting the segments of a tree of answers by the mean of what follows them."""

import dataclasses
from typing import Any

from strop.advantage.credit.credit_value_steps import CreditValueSteps
from strop.advantage.weight.whiten_over_batch_tokens import WhitenOverBatchTokens
from strop.algorithm import Algorithm
from strop.errors import UserError
from strop.part import Use
from strop.probe.back_up_tree_values import BackUpTreeValues
from strop.probe.mark_each_edge_once import MarkEachEdgeOnce
from strop.probe.mark_unlikely_tokens import MarkUnlikelyTokens
from strop.recipes._inherit import inherits
from strop.recipes.spo_chain import spo_chain
from strop.rollout.grow_segment_tree import GrowSegmentTree


@inherits(spo_chain, without=("interval", "num_continuations", "num_rollouts"), num_prompts=16)
def spo_tree(
    *,
    # "rloo": child minus parent; "grpo": divided by the deviation of the parent's children.
    mode: str = "rloo",
    # Added to that deviation.
    eps: float = 1e-8,
    # Continuations of a node on each level.
    branching: tuple[int, ...] = (6, 6, 6),
    # Tokens of a segment but on the last level; 600 for long answers.
    segment_tokens: int = 30,
    p0: float = 0.9,
    whiten_eps: float = 1e-8,
    **parent: Any,
) -> Algorithm:
    """Segment Policy Optimization: Effective Segment-Level Credit Assignment in RL (SPO-tree).

    arXiv 2505.23564. Code: AIFrameResearch/SPO. Parent: spo_chain. Status: partial.

    Equation: A_edge = V(child) - V(parent), V(leaf) = reward, V(node) = mean V(children); edges of
    advantage 0 are left out, the others' tokens with p_old < p0 are whitened and trained on.
    Differs from the parent: answers share their beginnings, so their values follow from each
    other, without further continuations.
    Differs from the paper: 1. the edges of this step alone are learnt, without the replay of up to
    8 iterations and its limit of 32 edges a prompt; 2. an edge stands in the answer of its first
    leaf, in place of a sample of its own: the same tokens in the same contexts, each once.
    Try: branching, segment_tokens, mode. `num_rollouts` of the sampler has no effect.
    """
    if mode not in ("rloo", "grpo"):
        raise UserError(f"spo_tree's mode must be rloo or grpo, it is {mode!r}")
    return dataclasses.replace(
        spo_chain(p0=p0, **parent),
        rollout=Use(GrowSegmentTree(branching=branching, segment_tokens=segment_tokens)),
        probes=(Use(BackUpTreeValues()),),
        advantage=(
            Use(CreditValueSteps(mode == "grpo", eps)),
            Use(MarkUnlikelyTokens(p0)),
            Use(MarkEachEdgeOnce()),
            Use(WhitenOverBatchTokens(whiten_eps), columns=(("mask_T", "learning_T"),)),
        ),
    )
