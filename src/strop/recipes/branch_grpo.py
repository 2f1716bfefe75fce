"""Credits the segments of a tree of answers by comparing the nodes of each depth."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.credit.compare_nodes_of_depth import CompareNodesOfDepth
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.curation.split_tree_into_edges import SplitTreeIntoEdges
from strop.parts.probe.back_up_tree_values import BackUpTreeValues
from strop.parts.rollout.grow_segment_tree import GrowSegmentTree
from strop.parts.selection.prune_tree_edges import PruneTreeEdges
from strop.recipes._base import ESTIMATOR
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo
from strop.support.errors import UserError

INTERVAL = 30


@inherits(grpo, without=(*ESTIMATOR, "num_rollouts"), beta=0.0)
def branch_grpo(
    *,
    # Continuations of a node on each level.
    branching: tuple[int, ...] = (2, 2, 2, 2),
    # Tokens of a segment, except on the last level.
    segment_tokens: int = 30,
    # Added to the deviation of a depth.
    eps: float = 1e-8,
    # Largest advantage either way.
    clamp: float = 5.0,
    # Share of the late edges that are trained on, the best and the worst; 1: all.
    width: float = 1.0,
    # The level from which edges are late, 0 for the first segments; -1: the last one.
    late: int = -1,
    # Levels whose edges are not trained on; where the first is below `late`, they shift up to it.
    pruned_depths: tuple[int, ...] = (),
    # Steps after which they shift by one level.
    interval: int = INTERVAL,
    **parent: Any,
) -> Algorithm:
    """BranchGRPO: Stable and Efficient GRPO with Structured Branching in Diffusion Models.

    arXiv 2509.06040. Code: Fredreic1849/BranchGRPO. Parent: grpo. Status: partial.

    Family: credit.
    In short: compares tree nodes by depth.
    Choose it when: answers are long enough to share prefixes, and a prefix should be compared with
    other prefixes, by the rewards that follow from it.
    Equation: V(leaf) = reward, V(node) = mean V(children); A_edge = (V(child) - mean) / (std + eps)
    over the nodes of that depth of the prompt's tree, within clamp; each edge is trained on once,
    with grpo's loss; of the late edges the share `width` with the best and worst advantages.
    Differs from the parent: answers branch in two on each level and share prefixes; a segment is
    compared with the others of its depth; each edge weighs the same, instead of each answer.
    Differs from the paper: it denoises images. 1. A segment of tokens stands for the steps between
    two branchings, so that the last level stands for all steps after the last one; 2. its mean
    likelihood over the numbers of a latent is here each token's ratio, with grpo's clip (there
    1e-3); 3. edges of advantage 0 are dropped before the pruning, not only from the loss; 4.
    children weigh the same, as in its code (its text: by likelihood); 5. one update a step.
    `reward` and `advantage/abs_mean` are of edges, `rewards/...` of answers.
    Try: width (0.5), branching, segment_tokens.
    """
    levels = len(branching)
    if not -levels <= late < levels:
        raise UserError(f"branch_grpo's late must be a level of {levels}, it is {late}")
    if interval != INTERVAL and pruned_depths and min(pruned_depths) <= late % levels:
        raise UserError(
            f"branch_grpo: interval={interval} would have no effect: pruned_depths shift only "
            f"from below late={late % levels} up to it; leave it out, or give a smaller late"
        )
    prune = PruneTreeEdges(pruned_depths, interval, late % levels, width)
    algorithm = grpo(**parent)
    credit = Use(CompareNodesOfDepth(eps, clamp), (("advantage_T", "credit_T"),))
    return dataclasses.replace(
        algorithm,
        rollout=Use(GrowSegmentTree(branching=branching, segment_tokens=segment_tokens)),
        reward=(*algorithm.reward, Use(BackUpTreeValues()), credit),
        curation=(Use(SplitTreeIntoEdges(), (("advantage_T", "credit_T"),)),),
        advantage=(Use(SpreadEvenly()),),
        selection=(Use(prune),),
    )
