"""Credits the segments of a tree of answers by the mean reward of what follows them."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.credit.credit_value_steps import CreditValueSteps
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.weight.whiten_over_batch_tokens import WhitenOverBatchTokens
from strop.parts.curation.replay_rollouts import ReplayRollouts
from strop.parts.curation.split_tree_into_edges import SplitTreeIntoEdges
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.parts.probe.back_up_tree_values import BackUpTreeValues
from strop.parts.rollout.grow_segment_tree import GrowSegmentTree
from strop.recipes._base import check_choice, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.spo_chain import spo_chain, unlikely


@inherits(
    spo_chain,
    without=("interval", "num_continuations", "num_rollouts"),
    num_prompts=16,
    num_minibatches=8,
)
def spo_tree(
    *,
    # "rloo": child minus parent; "grpo": divided by the deviation of the parent's children.
    mode: str = "rloo",
    # Added to that deviation.
    eps: float = 1e-8,
    # Continuations of a node on each level.
    branching: tuple[int, ...] = (6, 6, 6),
    # Tokens of a segment, except on the last level; 600 for long answers.
    segment_tokens: int = 30,
    # Edges of a prompt that are trained on in a step; the others wait in the replay buffer.
    per_prompt: int = 32,
    # Edges trained on in a step; 512 for long answers.
    num_edges: int = 1024,
    # Steps after which an edge is dropped from the replay buffer.
    max_age: int = 8,
    p0: float = 0.9,
    whiten_eps: float = 1e-8,
    **parent: Any,
) -> Algorithm:
    """Segment Policy Optimization: Effective Segment-Level Credit Assignment in RL (SPO-tree).

    arXiv 2505.23564. Code: AIFrameResearch/SPO. Parent: spo_chain. Status: exact.

    Family: credit.
    In short: segment values from a tree.
    Choose it when: segments should be credited without further continuations, and answers are long
    enough to share prefixes.
    Equation: A_edge = V(child) - V(parent), V(leaf) = reward, V(node) = mean V(children); edges of
    advantage 0 are left out, the others go into a replay buffer; of the edges sampled from it, the
    tokens with p_old < p0 are whitened and trained on, with the ratio to the policy that sampled
    them.
    Differs from the parent: answers share prefixes, so their values follow from each other, without
    further continuations; edges wait for up to max_age steps; eight updates a step.
    Differs from the paper: as spo_chain, of edges. `reward` and `advantage/abs_mean` are of edges,
    `rewards/...` of answers.
    Try: branching, segment_tokens, mode. `num_rollouts` of the sampler has no effect.
    """
    check_choice("spo_tree", ("rloo", "grpo"), mode=mode)
    algorithm = spo_chain(p0=p0, **parent)
    credit = CreditValueSteps(mode == "grpo", eps)
    store = ReplayRollouts(0, num_edges, per_prompt, max_age, keep_drawn=False)
    of_sampler = (("logp_old_T", "logp_sampler_T"),)
    return dataclasses.replace(
        with_policy(algorithm, ratio=Use(RatioPerToken(clamp_nats=10.0), of_sampler)),
        rollout=Use(GrowSegmentTree(branching=branching, segment_tokens=segment_tokens)),
        reward=(
            *algorithm.reward,
            Use(BackUpTreeValues()),
            Use(credit, (("advantage_T", "credit_T"),)),
        ),
        curation=(Use(SplitTreeIntoEdges(), (("advantage_T", "credit_T"),)), Use(store)),
        probes=(),
        advantage=(
            Use(SpreadEvenly()),
            unlikely(p0),
            Use(WhitenOverBatchTokens(whiten_eps), columns=(("mask_T", "learning_T"),)),
        ),
    )
